"""Helps to read what others wrote: errors that name the file and why it cannot be read, and a check of free memory.

A broken link, a file without rights and a pipe never count as absent, as a site that lost half its images would
silently continue to train.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, shown

_CAUSE = 300  # characters of a quoted cause
_ANNEX = ".git/annex/objects"
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def reason(path: Path) -> str:
    """Return the reason why a path cannot be read; empty if it can, or if nothing exists there.

    Nothing is opened, as a pipe without a writer would block the process for ever.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        link = _broken_link(path)
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        return link or ("" if absent else error.strerror or type(error).__name__)
    folder = stat.S_ISDIR(mode)
    if folder or stat.S_ISREG(mode):
        rights = os.R_OK | os.X_OK if folder else os.R_OK
        if os.access(path, rights, effective_ids=os.access in os.supports_effective_ids):
            return ""
        return f"this user may not {'list the folder' if folder else 'read the file'}: change its rights"
    kind = next((name for test, name in _KINDS if test(mode)), "a special file")
    return f"{kind}, not a file: remove it"


def check(path: Path) -> None:
    """Refuse a path that exists but cannot be read.

    Raises:
        DataError: With the reason and the remedy.
    """
    if why := reason(path):
        raise DataError(f"{shown(path)}: cannot be read ({why})")


def _broken_link(path: Path) -> str:
    """Return a text on the first broken link on the way to a path; empty if there is none."""
    for place in (path, *path.parents):
        try:
            if not place.is_symlink():
                continue
            target = str(place.readlink())
        except OSError:
            continue
        if os.path.exists(place):  # noqa: PTH110 - False for a loop too, where Path.exists raises
            continue
        which = "a link" if place == path else f"{shown(place)} is a link"
        annexed = "`git annex get` or `datalad get` brings its content"
        remedy = annexed if _ANNEX in target else "bring its content, or remove the link"
        return f"{which} to {shown(target)}, which is not there: {remedy}"
    return ""


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
    except Exception as cause:
        name = cause.filename if isinstance(cause, OSError) else None
        place = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
        why = reason(place) if place else ""
        raise DataError(f"{shown(place if why else where)}: cannot be read ({why or brief(cause)})") from cause


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
