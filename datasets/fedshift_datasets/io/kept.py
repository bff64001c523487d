"""Files that keep numbers of images: arrays, what they are of, and their digests, in one file for its owner alone.

A file is a row of chunks: a head, JSON, and the bytes of arrays. More is added as a further chunk. A file is valid up
to the first chunk that is damaged or cut off; the rest is made again, in a new file, as other processes may have the
old one mapped. Digests are compared when a file is first seen, and whenever its inode, size or times are not those that
were noted in the file of its lock.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedshift_core import disk_use, private_files, said_once
from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets.arrays import Indices, Numbers, Pixels

CACHE_DIR = "FEDSHIFT_CACHE"  # environment variable: the folder of the cache
PART = ".part"  # suffix of a file that is being built
_BUILD = re.compile(rf"\..+-[0-9a-f]{{16,32}}(\.list)?\{PART}")  # its name in the meantime
_MAGIC = b"fedshft1"
_HEAD = struct.Struct("<8sQQI")  # of a chunk: the above, bytes of its JSON and of its arrays, CRC-32 of these
_PIECE = 1 << 22  # bytes that are read at a time
_BLANK = "0" * 64  # for a digest that is not known yet
#: Seconds after a file's last change in which another change may have the same time.
_UNSETTLED = 0.02

log = logging.getLogger("fedshift")
#: Files that are as this process has made or checked them, with their identity.
_checked: dict[Path, list[int] | None] = {}


def cache_dir() -> Path:
    """Return the folder of the cache: ``$FEDSHIFT_CACHE``, or ``~/.cache/fedshift/images``."""
    named = os.environ.get(CACHE_DIR)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "fedshift" / "images"


@dataclass(frozen=True)
class Chunk:
    """A part of a file.

    Attributes:
        about: What it says; of its arrays also ``shape``, of the first one, and ``digest``.
        start: Where its arrays begin, in bytes.
        length: Their bytes.
    """

    about: Mapping[str, Any]
    start: int
    length: int

    @property
    def end(self) -> int:
        """Its end, in bytes."""
        return self.start + self.length


@dataclass(frozen=True)
class Kept:
    """A file as far as it is valid.

    Attributes:
        path: The file.
        chunks: What is valid of it.
        size: Its bytes, with those that are not.
    """

    path: Path
    chunks: tuple[Chunk, ...] = ()
    size: int = 0

    @cached_property
    def about(self) -> dict[str, Any]:
        """The statements of all its chunks; the last one holds."""
        return {key: value for chunk in self.chunks for key, value in chunk.about.items()}

    @property
    def end(self) -> int:
        """The end of its last chunk, in bytes."""
        return self.chunks[-1].end if self.chunks else 0

    @property
    def number(self) -> int:
        """Its number of images or rows."""
        return sum(chunk.about["shape"][0] for chunk in self.chunks if chunk.length)

    def content(self, chunk: Chunk, skipped: int = 0) -> bytes:
        """Return the arrays of a chunk as bytes, without the first ones.

        Raises:
            OSError: If the file is gone.
        """
        with self.path.open("rb") as file:
            file.seek(chunk.start + skipped)
            return file.read(chunk.length - skipped)

    def _now(self) -> "Kept":
        """Return the file as it is now; an empty one if it has other arrays."""
        now = read(self.path)
        same = now.chunks and now.chunks[0].about == self.chunks[0].about
        return now if same else Kept(self.path)

    def note(self, name: str) -> Any:
        """Return what was noted of its arrays under a name; None if there is nothing."""
        return self._now().about.get(name)

    def add_note(self, name: str, content: Any) -> None:
        """Keep what was found out about its arrays, unless the file has others by now.

        Raises:
            DataError: If it cannot be written.
        """
        with writing(self.path):
            if self._now().chunks:
                with appending(self.path) as file:
                    write(file, {name: content})


def read(path: Path, check: bool | None = None) -> Kept:
    """Return what is valid of a file; nothing of one that is not there.

    Args:
        path: The file.
        check: Whether digests are compared; None: of what is not known to be valid.
    """
    identity = identity_of(path)
    known = 0 if identity is None or check else _known(path, identity)
    chunks: list[Chunk] = []
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (chunk := _next(file, size, check=check is not False and file.tell() >= known)) is not None:
            chunks.append(chunk)
    kept = Kept(path, tuple(chunks), identity[2] if identity else 0)
    if identity is not None and check is not False:
        _checked[path] = [*identity[:2], kept.end, *identity[3:]]
    return kept


def _known(path: Path, identity: Sequence[int]) -> int:
    """Return how many bytes of a file are known to be valid; one that has grown is so as far as it was before."""
    for known in (_checked.get(path), _noted(path)):
        if known == identity or (isinstance(known, list) and known[:2] == identity[:2] and known[2] < identity[2]):
            return int(known[2])
    return 0


def _next(file: BinaryIO, size: int, check: bool) -> Chunk | None:
    """Read the next chunk of a file of so many bytes, and go to its end; None if there is none that is valid."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, of_text, of_arrays, checksum = _HEAD.unpack(head)
    if magic != _MAGIC or file.tell() + of_text + of_arrays > size:
        return None
    text = file.read(of_text)
    if checksum != _checksum(text, of_arrays):
        return None
    about, start = json.loads(text), file.tell()
    if check and of_arrays:
        pieces = (file.read(min(_PIECE, of_arrays - at)) for at in range(0, of_arrays, _PIECE))
        if digest(about["shape"], pieces) != about["digest"]:
            return None
    file.seek(start + of_arrays)
    return Chunk(about, start, of_arrays)


def _checksum(text: bytes, of_arrays: int) -> int:
    return zlib.crc32(text, of_arrays & 0xFFFFFFFF)


def digest(shape: Sequence[int], pieces: Iterable[Any]) -> str:
    """Return the SHA-256 of arrays, given in pieces, and of the shape of the first one."""
    result = hashlib.sha256(f"{tuple(shape)}".encode())
    for piece in pieces:
        result.update(piece)
    return result.hexdigest()


def write(file: BinaryIO, about: Mapping[str, Any], *arrays: Numbers, align: int = 1) -> None:
    """Write a chunk.

    Args:
        file: Where, at its end.
        about: What it says.
        arrays: Its arrays; the first one is of so many images or rows.
        align: The arrays begin at a multiple of so many bytes.

    Raises:
        OSError: If it cannot be written.
    """
    pieces = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
    if arrays:
        shape = arrays[0].shape
        about = {**about, "shape": shape, "digest": digest(shape, pieces)}
    file.write(_head(about, file.tell(), sum(map(len, pieces)), align))
    file.writelines(pieces)


def _head(about: Mapping[str, Any], at: int, of_arrays: int, align: int) -> bytes:
    """Return the head and the JSON of a chunk at a place of the file."""
    text = json.dumps(about).encode()
    text += b" " * (-(at + _HEAD.size + len(text)) % align)
    return _HEAD.pack(_MAGIC, len(text), of_arrays, _checksum(text, of_arrays)) + text


@contextlib.contextmanager
def mapped(
    file: BinaryIO, shape: tuple[int, ...], labels: Indices, *, masks: bool = False
) -> Iterator[tuple[int, Pixels | None, Indices]]:
    """Begin a file with pixels (N, size, size, 3), maybe masks (N, size, size), and labels (N,).

    Yields where the pixels begin, in bytes, and masks and labels, mapped. The caller, or processes that it starts,
    write pixels and masks into the file; the caller may change the labels where they are mapped.

    Raises:
        OSError: If there is no room on the disk; a mapped page without room would kill the process.
    """
    blank, of_pixels = {"shape": shape, "digest": _BLANK}, int(np.prod(shape))
    of_masks = of_pixels // shape[-1] if masks else 0
    length = of_pixels + of_masks + labels.nbytes
    start = len(_head(blank, 0, length, 64))
    disk_use.check_room(Path(file.name).parent, start + length)
    os.posix_fallocate(file.fileno(), 0, start + length)
    area = np.memmap(file, np.uint8, "r+", start, (length,))
    in_file = area[of_pixels + of_masks :].view(np.int64)
    in_file[:] = labels
    between = area[of_pixels : of_pixels + of_masks]
    yield start, between.reshape(shape[:-1]) if masks else None, in_file
    area.flush()
    file.seek(0)
    file.write(_head(blank | {"digest": digest(shape, [area.data])}, 0, length, 64))
    file.seek(start + length)


@contextlib.contextmanager
def building(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file, which takes its place when it is complete, or never. The caller holds the lock.

    Raises:
        OSError: If it cannot be written.
    """
    part = path.with_name(f".{path.name}{PART}")
    private_files.make(part)
    try:
        with part.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _checked[path] = identity_of(path)


@contextlib.contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """Yield a file at its end, without what is damaged or cut off, or a new one. The caller holds the lock.

    Raises:
        OSError: If it cannot be written.
    """
    kept = read(path)
    if kept.end < kept.size:
        log.warning("%s: damaged or cut off; what is missing is made again", shown(path))
        with building(path) as new, path.open("rb") as old:
            new.writelines(old.read(min(_PIECE, kept.end - at)) for at in range(0, kept.end, _PIECE))
    private_files.make(path)
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        yield file
        file.flush()
        os.fsync(file.fileno())
    _checked[path] = identity_of(path)


@contextlib.contextmanager
def placing(path: Path) -> Iterator[None]:
    """Make the folder of a file, and turn a full disk or a missing right into an error.

    Raises:
        DataError: If it cannot be written, with a remedy.
    """
    try:
        for folder in (cache_dir(), path.parent):
            private_files.make_folder(folder)
        yield
    except OSError as error:
        raise DataError(
            f"cannot write the image cache to {shown(path.parent)} ({error.strerror or error}); "
            f"set {CACHE_DIR} to a folder with room"
        ) from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let this process alone write a file, and note in the end that it is as this process knows it; others wait.

    Raises:
        DataError: As :func:`placing`.
    """
    with placing(path), private_files.locked(lock_of(path)):
        yield
        identity = _checked.get(path)
        if identity is not None and identity != _noted(path):
            if time.time() - max(identity[-2:]) / 1e9 < _UNSETTLED:
                time.sleep(_UNSETTLED)
            if identity == identity_of(path):
                lock_of(path).write_text(json.dumps(identity), encoding="ascii")


def keep(path: Path, about: Mapping[str, Any], *arrays: Numbers) -> None:
    """Write a file of one chunk.

    Raises:
        DataError: As :func:`placing`.
    """
    with writing(path), building(path) as file:
        write(file, about, *arrays)


def lock_of(path: Path) -> Path:
    """Return the file of the lock of a file; its time is that of the last use."""
    return path.with_name(f".{path.name}.lock")


def identity_of(path: Path) -> list[int] | None:
    """Return numbers that change whenever a file does; None if it is not there."""
    try:
        about = path.stat()
    except OSError:
        return None
    return [about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def _noted(path: Path) -> Any:
    """Return the identity that a file had when its digests agreed; None if nobody noted it."""
    try:
        return json.loads(lock_of(path).read_bytes())
    except (OSError, ValueError):
        return None


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of the folder that an earlier version kept in its place; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return sum(inside.lstat().st_size for inside in (path.iterdir() if path.is_dir() else [path]))
    return 0


def removed(path: Path) -> bool:
    """Delete a file unless another process holds its lock; return whether that was done. Who has it mapped keeps it.

    Raises:
        OSError: If this user may not.
    """
    with private_files.tried(lock_of(path)) as alone:
        if alone and path.is_dir():  # of an earlier version
            shutil.rmtree(path)
        elif alone:
            path.unlink(missing_ok=True)
        return alone


def remove_earlier(folder: Path, stem: str) -> None:
    """Delete what an earlier version kept under a beginning of names, in folders, and say so once."""
    name = re.compile(rf"\.?{re.escape(stem)}-[0-9a-f]{{12,16}}")
    for path in folder.iterdir():
        if name.fullmatch(path.name) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # of a link it does nothing
            said_once.warn(f"{shown(folder)}: what an earlier version of FedShift kept there is made once more")


def builds() -> list[Path]:
    """Return the files of builds in progress or interrupted."""
    found = (path for inside in ("", "features/") for path in cache_dir().glob(f"{inside}.*{PART}"))
    return [path for path in found if _BUILD.fullmatch(path.name) and path.is_file() and not path.is_symlink()]


def remove_abandoned() -> None:
    """Delete the files of builds whose process was killed."""
    for part in builds():
        # Another process may delete it too, or it belongs to another user.
        with contextlib.suppress(OSError), private_files.tried(part.with_suffix(".lock")) as alone:
            if alone:
                part.unlink(missing_ok=True)
