"""Lists and removes what is left of a run that a site withdraws from, and writes a receipt.

The receipt is a JSON file in the new run folder, next to it a signature that ``openssl`` verifies.
"""

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedshift.export.saved import MODEL_JSON
from fedshift.run.reading import Record
from fedshift_app.run.files import CONFIG_FILE, read_json
from fedshift_core import atomic_io
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_core.yaml_files import read_yaml

RECEIPT = "withdrawal"  # the beginning of its name


def of_run(record: Record, sums: Path | None) -> list[Path]:
    """Return what is removed: the run folder first, then folders next to it that were made of it, and the site's file.

    These are runs that scored its models again, and models that were saved there.

    Args:
        record: The run.
        sums: The file of the site's sums; None where the run kept them.
    """
    run_id = str(record.config_file.get("run_id", ""))
    near = [path for path in sorted(record.folder.parent.iterdir()) if path.is_dir() and path != record.folder]
    made = [path for path in near if run_id and run_id in _origins(path)]
    return [record.folder, *made, *([] if sums is None else [sums])]


def _origins(folder: Path) -> Iterator[str]:
    """Yield the runs whose model a folder has."""
    for read, file, key in ((read_yaml, CONFIG_FILE, "scored_again"), (read_json, MODEL_JSON, "origin")):
        with contextlib.suppress(ConfigError, AttributeError):
            run_id = (read(folder / file).get(key) or {}).get("run_id")
            if isinstance(run_id, str):
                yield run_id


def described(removed: Sequence[Path]) -> list[str]:
    """Return a line of each folder or file that is removed, with what is in it."""
    lines = []
    for path in removed:
        if path.is_file():
            lines.append(shown(path.name))
            continue
        files = [each for each in path.rglob("*") if each.is_file()]
        names = ", ".join(sorted({each.relative_to(path).parts[0] for each in files}))
        lines.append(f"{shown(path.name)}: {plural(len(files), 'file')} ({shown(names, 2000)})")
    return lines


def elsewhere(record: Record) -> list[str]:
    """Return what may be left of the site where this command cannot reach."""
    lines = ["copies of this folder, saved models in other folders, pages and tables that were made of them"]
    lines += [f"the run at {tracker}" for tracker in record.config.tracking]
    if record.deployed:
        lines += ["the logs and the database of the SuperLink", "on the node: its log, ledger and state, its owner's"]
    return lines


def remove(paths: Sequence[Path]) -> None:
    """Remove folders and files.

    Raises:
        DiskError: If one cannot be removed; those before it are gone.
    """
    for path in paths:
        with atomic_io.writing(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def write_receipt(folder: Path, content: dict[str, Any], key: ec.EllipticCurvePrivateKey | None) -> Path:
    """Write a receipt after those that a folder has; return its file, next to which the signature is (``.sig``).

    Args:
        folder: The run folder.
        content: What it says besides its time.
        key: Signs it; None: nobody does.

    Raises:
        DiskError: If it cannot be written.
    """
    path = folder / f"{RECEIPT}-{len(receipts(folder)) + 1}.json"
    data = (json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **content}, indent=2) + "\n").encode()
    atomic_io.write_durably(path, data)
    if key is not None:
        atomic_io.write_durably(path.with_suffix(".sig"), key.sign(data, ec.ECDSA(hashes.SHA384())))
    return path


def receipts(folder: Path, suffix: str = "json") -> list[Path]:
    """Return the receipts of a folder, or their signatures (``sig``)."""
    return sorted(folder.glob(f"{RECEIPT}-*.{suffix}"))
