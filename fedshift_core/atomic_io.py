"""Writes files completely or not at all, even after a kill or a power cut. Packs named arrays; locks folders."""

import contextlib
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedshift_core import disk_use, private_files
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError, StorageError
from fedshift_core.limits import message

PART = ".part"  # suffix of a file that is being written
#: Error numbers of a disk that is full, over its quota, read-only or failing.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class DiskError(FedShiftError, OSError):
    """The file ``filename`` cannot be written: the disk is full, read-only or failing, or the folder is gone."""

    def __init__(self, number: int | None, reason: str, path: str) -> None:
        OSError.__init__(self, number, reason, path)

    def __str__(self) -> str:
        return message(f"cannot write {self.filename}: {self.strerror}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn system errors on writing into an error that names the file, which they often do not.

    Raises:
        DiskError: With the file and the reason.
    """
    try:
        yield
    except DiskError:
        raise
    except OSError as error:
        raise DiskError(error.errno, error.strerror or str(error), str(path)) from None


def write_durably(path: Path, data: bytes, *, named: bool = True, private: bool = False) -> None:
    """Write a file so that a reader sees the old or the new one, never a part of it: write, fsync, rename.

    Args:
        path: The file.
        data: Its content.
        named: Sync its name as well; a caller that writes several files does so with the last one.
        private: Only its owner may read it, whatever the umask.

    Raises:
        DiskError: If it cannot be written; the old file then remains.
    """
    part = path.with_name(path.name + PART)
    with writing(path):
        disk_use.check_room(path.parent, len(data))
        try:
            if private:
                private_files.make(part)
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):  # an incomplete file would only fill the disk
                part.unlink(missing_ok=True)
            raise
        if named:
            sync_folder(path.parent)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file as :func:`write_durably` does."""
    write_durably(path, text.encode())


def append_line(path: Path, line: str) -> None:
    """Append a line to a text file and sync it to the disk.

    Raises:
        DiskError: If it cannot be written; a part of the line may then be there.
    """
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk: a new file's name is not part of the file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pack(arrays: Arrays) -> bytes:
    """Return arrays as a safetensors file; their order is lost."""
    # safetensors copies the memory in its present order.
    return bytes(save({name: a if a.flags.c_contiguous else a.copy(order="C") for name, a in arrays.items()}))


def unpack(data: bytes) -> Arrays:
    """Return the arrays of a safetensors file, C-ordered.

    Raises:
        ValueError: If it is not a safetensors file.
    """
    try:
        arrays: Arrays = load(data)
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"not a safetensors file: {error}") from None
    return arrays


def read_arrays(path: Path) -> Arrays:
    """Return the arrays of a safetensors file.

    Raises:
        StorageError: If it cannot be read.
    """
    try:
        return unpack(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {error}") from None


class InUse(Exception):  # noqa: N818 (a state, not a malfunction)
    """Another process holds the lock; the message names it."""


class Lock:
    """A lock on a folder, held until :meth:`release` or until the process ends in any way."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        """Take the lock that the file ``path`` stands for.

        Args:
            path: The file.
            shared: Other shared locks are allowed at the same time, exclusive ones are not.

        Raises:
            InUse: If another process holds it.
            OSError: If the file cannot be made or written.
        """
        self._file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = _holder(self._file.read())
            self._file.close()
            raise InUse(holder) from None
        except OSError:
            self._file.close()
            raise
        try:
            self._file.truncate(0)
            if shared:  # many processes may share it
                return
            self._file.write(json.dumps(_holding(os.getpid(), socket.gethostname())) + "\n")
            self._file.flush()
        except OSError:
            with contextlib.suppress(OSError):  # closing tries to write once more
                self._file.close()
            raise

    def release(self) -> None:
        """Release the lock."""
        self._file.close()


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock that the file ``path`` stands for.

    Raises:
        OSError: If the file is there and cannot be read.
    """
    try:
        with path.open(encoding="utf-8") as file:
            # Released at once; a process that wants the lock in these microseconds finds it in use.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def names_holder(path: Path, pid: object, host: object) -> bool:
    """Return whether a lock's file names this process, which took it last and may have released it since.

    Raises:
        OSError: If the file cannot be read.
    """
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")) == _holding(pid, host))
    except ValueError:  # it has not been written yet
        return False


def _holding(pid: object, host: object) -> dict[str, object]:
    return {"pid": pid, "host": host}


def _holder(content: str) -> str:
    try:
        holder = json.loads(content)
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, TypeError, KeyError):  # the holder has not written the file yet
        return "another process"
