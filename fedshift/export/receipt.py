"""The receipt of a withdrawal: a JSON file in the new run folder, and a signature that ``openssl`` verifies."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedshift_core import atomic_io

STEM = "withdrawal"


def written(folder: Path, content: dict[str, Any], key: ec.EllipticCurvePrivateKey | None) -> Path:
    """Write a receipt after those that a folder has; return its file, next to which the signature is (``.sig``).

    Args:
        folder: The run folder.
        content: What it says besides its time.
        key: Signs it; None: nobody does.

    Raises:
        DiskError: If it cannot be written.
    """
    path = folder / f"{STEM}-{len(earlier(folder)) + 1}.json"
    data = (json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **content}, indent=2) + "\n").encode()
    atomic_io.write_durably(path, data)
    if key is not None:
        atomic_io.write_durably(path.with_suffix(".sig"), key.sign(data, ec.ECDSA(hashes.SHA384())))
    return path


def earlier(folder: Path) -> Sequence[Path]:
    """Return the receipts of a folder, without their signatures."""
    return sorted(folder.glob(f"{STEM}-*.json"))
