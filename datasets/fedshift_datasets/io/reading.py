"""Helps to read untrusted files: errors that name the file, and a check of the free memory."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, shown
from fedshift_datasets.io import presence

_CAUSE = 300  # characters of a quoted cause


def brief(cause: BaseException) -> str:
    """Return an exception as one printable line: its type and the start of its text."""
    text = shown(" ".join(str(cause).split())[:_CAUSE])
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


@contextmanager
def reading(where: object) -> Iterator[None]:
    """Turn any error of a file parser into a :class:`DataError` that names ``where``.

    Parsers of zip, image, idx, bz2 and mat files raise nearly any type on broken bytes.

    Raises:
        DataError: With the cause in brackets; a DataError raised inside passes unchanged.
    """
    try:
        yield
    except DataError:
        raise
    except OSError as cause:
        place = Path(os.fsdecode(cause.filename)) if isinstance(cause.filename, str | bytes) else None
        if place is not None and (why := presence.reason(place)):
            raise DataError(f"{shown(place)}: cannot be read ({why})") from cause
        raise DataError(f"{shown(where)}: cannot be read ({brief(cause)})") from cause
    except Exception as cause:
        raise DataError(f"{shown(where)}: cannot be read ({brief(cause)})") from cause


def check_room(where: object, size: int) -> None:
    """Check before unpacking that the content of a file fits into this machine's free memory.

    Args:
        where: The file.
        size: Bytes of its content, as the file states.

    Raises:
        DataError: If it does not fit.
    """
    free = psutil.virtual_memory().available
    if size > free:
        raise DataError(
            f"{shown(where)}: unpacked it takes {size / 2**30:.3g} GiB of memory, here {free / 2**30:.3g} GiB are free"
        )


def listed(names: Iterable[str]) -> str:
    """Return names from files and folders in one printable line of bounded length."""
    return shown(", ".join(shown(name, MOST_NAME) for name in names))
