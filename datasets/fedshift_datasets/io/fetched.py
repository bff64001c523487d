"""Image sets of the Hugging Face hub that ``fedshift get`` keeps as folders of images as users have them."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from fedshift_core.errors import ConfigError, DataError
from fedshift_core.limits import as_found, shown, some

HUB_DIR = "FEDSHIFT_HUB"  # environment variable: the folder of all sets
RECORD = ".hub.json"  # in the folder of a set
#: First bytes of image files, with the suffix that says so.
_KINDS = {
    b"\xff\xd8\xff": ".jpg",
    b"\x89PNG": ".png",
    b"BM": ".bmp",
    b"II*\0": ".tif",
    b"MM\0*": ".tif",
    b"RIFF": ".webp",
}
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


def write(picture: Any, folder: Path, mark: str, where: str) -> None:
    """Write the image of a row.

    Args:
        picture: Its bytes, and the name of its file as far as the row has one.
        folder: The folder of its domain, split and class.
        mark: The end of its name, another for each row.
        where: The row, for messages.

    Raises:
        DataError: If it holds no image.
    """
    content, path = (picture.get("bytes"), picture.get("path")) if isinstance(picture, dict) else (picture, None)
    if not isinstance(content, bytes) or not content:
        raise DataError(f"{where}: no image, but {as_found(picture)}; its bytes must lie in the data set's own files")
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]", "_", Path(path or "").stem) or "image"
    (folder / f"{stem}_{mark}{_suffix(content, where)}").write_bytes(content)


def name_of(value: Any, names: tuple[str, ...], column: str, check: Any) -> str:
    """Return the folder of a domain or class.

    Raises:
        ConfigError: If the value has no name, or the name cannot be a folder.
    """
    if isinstance(value, int) and names:
        if not 0 <= value < len(names):
            raise ConfigError(f"column {column}: {value}; allowed are 0 to {len(names) - 1} ({some(list(names), 6)})")
        value = names[value]
    text = str(value) if isinstance(value, str) else f"{column}{value}"
    return folder_name(text.replace("/", "_").strip(), f"column {column}", check)


def folder_name(text: str, where: str, check: Callable[[str], None]) -> str:
    """Return the name of a folder.

    Raises:
        ConfigError: If it cannot be one.
    """
    try:
        if text.startswith("."):
            raise ValueError(f"{as_found(text)}; allowed are names without a dot at the beginning")
        check(text)
    except ValueError as problem:
        raise ConfigError(f"{where}: {problem}") from None
    return text


def _suffix(content: bytes, where: str) -> str:
    kind = next((suffix for begin, suffix in _KINDS.items() if content.startswith(begin)), "")
    if not kind:
        raise DataError(f"{where}: begins with {content[:4]!r}; taken are {', '.join(sorted({*_KINDS.values()}))}")
    return kind
