"""Makes files and folders for images that only their owner may read, whatever the umask."""

from pathlib import Path


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
