"""Folders in which parts of the cache are built, each locked by the process that builds it; others are left-overs."""

import contextlib
import fcntl
import logging
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from fedshift_core import private_files
from fedshift_core.limits import shown

_NAME = re.compile(r"\..+px-[^.]+")  # how folders of builds are called: nothing else in the cache is
log = logging.getLogger("fedshift")


@contextlib.contextmanager
def folder(parent: Path, stem: str) -> Iterator[Path]:
    """Make a folder to build in, and remove it in the end if it is still there; it is its owner's alone.

    The lock is there before the folder is, so that :func:`remove_abandoned` of another process never takes a folder
    without one for a live one, or the reverse.

    Args:
        parent: Where it is made.
        stem: The beginning of its name, after a dot.

    Raises:
        OSError: If it cannot be made.
    """
    made = parent / f".{stem}-{secrets.token_hex(6)}"
    lock = _lock_of(made)
    private_files.make(lock)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            made.mkdir(mode=0o700)
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)
            lock.unlink(missing_ok=True)


def remove_abandoned(parent: Path, known: frozenset[str]) -> None:
    """Remove the folders of builds that were killed, and say so.

    Args:
        parent: Where builds take place.
        known: Names of files that a build writes; a folder with anything else in it is somebody's, and stays.
    """
    for left in sorted(parent.glob(".*px-*/")):
        if not _NAME.fullmatch(left.name) or left.is_symlink():
            continue
        with contextlib.suppress(OSError):  # another process removes it too, or it is another user's
            if {path.name for path in left.iterdir()} <= known and _is_abandoned(left):
                shutil.rmtree(left)
                _lock_of(left).unlink(missing_ok=True)
                log.warning("%s: removed, what a build of images left that was cut off", shown(left))


def _is_abandoned(left: Path) -> bool:
    """Return whether no process holds the lock of a folder."""
    try:
        with _lock_of(left).open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:  # held
        return False
    return True


def _lock_of(made: Path) -> Path:
    return made.with_name(f"{made.name}.lock")
