"""Makes folders in which parts of the cache are built, each locked by its process; others are abandoned."""

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

_NAME = re.compile(r"\..+px-[^.]+")  # form of the names of build folders, which nothing else in the cache has
log = logging.getLogger("fedshift")


@contextlib.contextmanager
def folder(parent: Path, stem: str) -> Iterator[Path]:
    """Make a private folder to build in, and remove it at the end if it still exists.

    The lock exists before the folder, so that :func:`remove_abandoned` of another process never takes a live folder
    for an abandoned one, or the reverse.

    Args:
        parent: The folder to make it in.
        stem: The beginning of its name, after a dot.

    Raises:
        OSError: If it cannot be made.
    """
    build = parent / f".{stem}-{secrets.token_hex(6)}"
    lock = _lock_of(build)
    with private_files.locked(lock):
        try:
            build.mkdir(mode=0o700)
            yield build
        finally:
            shutil.rmtree(build, ignore_errors=True)
            lock.unlink(missing_ok=True)


def remove_abandoned(parent: Path, known: frozenset[str]) -> None:
    """Remove the folders of killed builds, and log it.

    Args:
        parent: The folder of builds.
        known: Names of files that a build writes; a folder with anything else stays.
    """
    for abandoned in sorted(parent.glob(".*px-*/")):
        if not _NAME.fullmatch(abandoned.name) or abandoned.is_symlink():
            continue
        with contextlib.suppress(OSError):  # another process removes it too, or it belongs to another user
            if {path.name for path in abandoned.iterdir()} <= known and _is_abandoned(abandoned):
                shutil.rmtree(abandoned)
                _lock_of(abandoned).unlink(missing_ok=True)
                log.warning("%s: removed, as an interrupted build of images left it", shown(abandoned))


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
