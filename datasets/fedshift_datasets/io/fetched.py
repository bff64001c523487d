"""Image sets of the Hugging Face hub that ``fedshift get`` keeps as folders of images, and where it keeps them."""

import os
import re
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shown

HUB_DIR = "FEDSHIFT_HUB"  # environment variable: the folder of all sets
RECORD = ".hub.json"  # in the folder of a set
_REPOSITORY = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)


class Part(BaseModel, frozen=True):
    """A parquet file: its SHA-256, and its number of images once they are written."""

    sha256: str
    images: int | None = None


class Record(BaseModel, frozen=True, extra="forbid"):
    """The content of a folder, and its origin."""

    repository: str
    revision: str
    licence: str
    columns: dict[str, str]
    parts: dict[str, Part]

    @property
    def whole(self) -> bool:
        """Whether all images are written."""
        return all(part.images is not None for part in self.parts.values())

    @property
    def images(self) -> int:
        """The number of images written."""
        return sum(part.images or 0 for part in self.parts.values())

    def with_part(self, name: str, part: Part) -> Self:
        """Return the record with one part replaced."""
        return self.model_copy(update={"parts": self.parts | {name: part}})


def folder(name: str) -> Path:
    """Return where a set is kept: below ``$FEDSHIFT_HUB``, or ``~/.cache/fedshift/hub``.

    Args:
        name: A data set of FedShift, or ``OWNER/NAME``.
    """
    named = os.environ.get(HUB_DIR)
    root = Path(named).expanduser() if named else Path.home() / ".cache" / "fedshift" / "hub"
    return root / name.replace("/", "--")


def check_repository(name: Any, key: str) -> str:
    """Return the name of a repository of the hub.

    Raises:
        ConfigError: If it cannot be one.
    """
    if not isinstance(name, str) or not _REPOSITORY.fullmatch(name) or ".." in name:
        raise ConfigError(f"{key}: {as_found(name)}; allowed is OWNER/NAME of a data set of the hub")
    return name


def read(path: Path) -> Record | None:
    """Return the record of a folder; None if it has none.

    Raises:
        ConfigError: If it cannot be read.
    """
    file = path / RECORD
    try:
        return Record.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise ConfigError(f"{shown(file)}: no record of `fedshift get`; delete the folder and get it again") from None


def found(name: str) -> Path | None:
    """Return the folder of a set that is kept as a whole; None if there is none.

    Raises:
        ConfigError: As :func:`read`.
    """
    record = read(folder(name))
    return folder(name) if record is not None and record.whole else None
