"""Makes files and folders for images that only their owner may read, whatever the umask; lets processes take turns."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def make(path: Path) -> None:
    """Make an empty file with mode 0600, or set this mode for an existing one.

    Raises:
        OSError: If it cannot be made, or belongs to another user.
    """
    path.touch(mode=0o600)
    path.chmod(0o600)


def make_folder(path: Path) -> None:
    """Make a folder with mode 0700 and its missing parents; an existing folder keeps its mode.

    Raises:
        OSError: If it cannot be made.
    """
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:  # another process made it meanwhile; if it is a file, the next access fails
        return
    path.chmod(0o700)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make a lock's file, wait for all other processes that hold it, and keep them waiting until the block is left.

    The end of the process lets it go, too.

    Raises:
        OSError: If the file cannot be made, or is a link.
    """
    descriptor = os.open(path, _LOCK, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def tried(path: Path) -> Iterator[bool]:
    """Yield whether this process has a lock, which it takes if it is free, until the block is left.

    Raises:
        OSError: If the lock's file cannot be made, or is a link.
    """
    descriptor = os.open(path, _LOCK, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)
