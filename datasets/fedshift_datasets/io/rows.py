"""Writes rows of Hugging Face's image sets as files, as they are: a folder of images as users have them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedshift_core.errors import ConfigError, DataError
from fedshift_core.limits import as_found, some

#: First bytes of image files, with the suffix that says so.
_KINDS = {
    b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"BM": ".bmp", b"II*\0": ".tif", b"MM\0*": ".tif", b"RIFF": ".webp",
}  # fmt: skip


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


def name(value: Any, names: tuple[str, ...], column: str, check: Any) -> str:
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
