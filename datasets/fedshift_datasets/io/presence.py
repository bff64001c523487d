"""Finds the reason why an existing file or folder cannot be read: broken links, missing rights, pipes.

Such a file never counts as absent, as a site that lost half its images would silently continue to train.
"""

import os
import stat
from pathlib import Path

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.io import pictures

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
    if stat.S_ISDIR(mode):
        return "" if _may(path, os.R_OK | os.X_OK) else "this user may not list the folder: change its rights"
    if stat.S_ISREG(mode):
        return "" if _may(path, os.R_OK) else "this user may not read the file: change its rights"
    kind = next((name for test, name in _KINDS if test(mode)), "a special file")
    return f"{kind}, not a file: remove it"


def check(path: Path) -> None:
    """Refuse a path that exists but cannot be read.

    Raises:
        DataError: With the reason and the remedy.
    """
    if why := reason(path):
        raise DataError(f"{shown(path)}: cannot be read ({why})")


def is_stray(path: Path) -> bool:
    """Return whether a name in a folder of images is irrelevant, such as a README."""
    return not pictures.is_image_name(path.name) and not pictures.not_taken([path.name])


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


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
        return f"{which} to {shown(target)}, which is not there: {_remedy(target)}"
    return ""


def _remedy(target: str) -> str:
    if _ANNEX in target:
        return "`git annex get` or `datalad get` brings its content"
    return "bring its content, or remove the link"
