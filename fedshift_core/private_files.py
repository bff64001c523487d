"""Files and folders that hold images: readable to their owner alone, whatever the umask is."""

from pathlib import Path


def make(path: Path) -> None:
    """Make an empty file of rights 0600, or give these to one that is there; what is written into it keeps them.

    Raises:
        OSError: If it cannot be made, or is another user's.
    """
    path.touch(mode=0o600)
    path.chmod(0o600)


def make_folder(path: Path) -> None:
    """Make a folder of rights 0700, and what is missing above it; one that is there stays as it is, its owner's choice.

    Raises:
        OSError: If it cannot be made.
    """
    if path.is_dir():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:  # another process made it meanwhile; if it is a file, what follows says so
        return
    path.chmod(0o700)
