"""The file by which a site takes its images out of a model: its own sums, under the signature of its node's key.

The owner makes it on the node (``fedshift site withdraw``) and hands it to the operator of the run, whose
``fedshift withdraw`` subtracts the sums. The file holds them as they are, so it tells what a node without secure sums
tells in a round.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field

from fedshift_core import atomic_io
from fedshift_core.arrays import Arrays, digest
from fedshift_core.errors import ConfigError
from fedshift_core.limits import LARGEST_COUNT, WHOLE_PATH, shown
from fedshift_core.secure import crypto, identity
from fedshift_core.secure.identity import Key, Signed

_ABOUT, _PUBLIC, _SIGNATURE = "about", "public", "signature"
_PURPOSE = "fedshift withdrawal"


class About(BaseModel, extra="forbid", frozen=True):
    """The words of a file on its sums.

    Attributes:
        run_id: The run.
        domain: The node's.
        patients: How many patients they are of; None: of all training images of the node.
        images: Training images.
    """

    run_id: str = Field(max_length=100)
    domain: str = Field(max_length=1000)
    patients: int | None = Field(ge=1, le=LARGEST_COUNT)
    images: int = Field(ge=1, le=LARGEST_COUNT)


@dataclass(frozen=True)
class Withdrawal:
    """A file that a node has signed.

    Attributes:
        about: What it says.
        sums: Its arrays, by name.
        signer: Fingerprint of the key.
    """

    about: About
    sums: Arrays
    signer: str


def write(path: Path, about: About, sums: Arrays, key: Key) -> None:
    """Write and sign a file for its owner's eyes alone.

    Raises:
        DiskError: If it cannot be written.
    """
    stated = about.model_dump_json().encode()
    signed = key.sign(_signed(stated, sums))
    texts = {_ABOUT: stated, _PUBLIC: signed.public, _SIGNATURE: signed.signature}
    arrays = sums | {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
    atomic_io.write_durably(path, atomic_io.pack(arrays), private=True)


def read(path: Path, public: Path) -> Withdrawal:
    """Return what a file says, once its signature is found to be that of a public key.

    Args:
        path: The file.
        public: The key's file, as ``fedshift credentials node`` makes it.

    Raises:
        ConfigError: If it is none, was changed, or another key has signed it.
    """
    fingerprint = identity.fingerprint(identity.read_public(public))
    try:
        arrays = atomic_io.unpack(path.read_bytes())
        stated, point, signature = (arrays.pop(name).tobytes() for name in (_ABOUT, _PUBLIC, _SIGNATURE))
        about = About.model_validate(json.loads(stated))
    except OSError as error:
        raise ConfigError(f"{shown(path, WHOLE_PATH)}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError):
        raise ConfigError(f"{shown(path, WHOLE_PATH)} is no file of `fedshift site withdraw`") from None
    if identity.why_not(Signed(point, signature), _signed(stated, arrays), [fingerprint]):
        raise ConfigError(
            f"{shown(path, WHOLE_PATH)} is not signed by {shown(public, WHOLE_PATH)}: it was changed, or another key "
            "signed it"
        )
    return Withdrawal(about, arrays, fingerprint)


def _signed(stated: bytes, sums: Arrays) -> bytes:
    return crypto.digest(_PURPOSE, stated, digest(sums))
