"""The file of the log of what leaves a node: lines in a hash chain, a head apart from them, a lock, a switch.

``out.jsonl`` in the node's folder (:func:`fedshift_app.node.state_folder.own_folder`) has a JSON object on each line.
Lines are appended and never changed. Each holds its number (``n``) and the SHA-256 of the line before (``before``);
``out.head.json`` holds the number of lines and the hash of the last one, so that lines that are missing at the end are
noticed, too (``fedshift.site.log`` verifies).

The head is written after its lines: what lies behind it was cut off while it was written. The next process that writes
marks it (a line of the kind ``interrupted``) and goes on. Processes of one node wait for one another.

The chain shows accidents and clumsy changes. Who can write both files can make up others: a head that was noted
elsewhere (``fedshift site log`` prints it) shows that, too.
"""

import contextlib
import hashlib
import json
import logging
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedshift_core import atomic_io, private_files
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import plain
from fedshift_core.plural import plural

log = logging.getLogger("fedshift")

LOG_FILE, HEAD_FILE, LOCK_FILE = "out.jsonl", "out.head.json", ".out.lock"
OFF_FILE = "off.json"  # the owner has switched the node off (``fedshift site stop``)
NOTHING = "0" * 64  # the hash before the first line
REPLY = "reply"  # the kind of the line that begins a reply
INTERRUPTED = "interrupted"  # the kind of a line that marks what was cut off


class LogError(FedShiftError):
    """The log cannot be written, or is not what its head says; the message is for the node's owner."""


class Head(BaseModel, frozen=True):
    """What is kept apart from the log.

    Attributes:
        lines: Number of lines.
        bytes: Their bytes, line ends included.
        sha256: SHA-256 of the last line, without its end.
    """

    lines: int = 0
    bytes: int = 0
    sha256: str = NOTHING

    @classmethod
    def read(cls, folder: Path) -> "Head | None":
        """Return the head of a node's log; None if there is none.

        Raises:
            LogError: If it cannot be read.
        """
        path = folder / HEAD_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise LogError(f"{path} cannot be read: {plain(str(error))}") from None

    def write(self, folder: Path) -> None:
        """Write it; a reader sees the old or the new one.

        Raises:
            DiskError: If it cannot be written.
        """
        atomic_io.write_durably(folder / HEAD_FILE, self.model_dump_json().encode() + b"\n", private=True)


def digest(line: bytes) -> str:
    """Return the hash of a line, without its end."""
    return hashlib.sha256(line).hexdigest()


def extended(head: Head, line: bytes) -> Head:
    """Return the head of a log that has another line; ``line`` is without its end."""
    return Head(lines=head.lines + 1, bytes=head.bytes + len(line) + 1, sha256=digest(line))


def stamp(seconds: float) -> str:
    """Return a time in UTC: ``2026-11-26T01:04:06.250Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder of a node, wait for all other processes that hold its lock, and keep them waiting.

    Raises:
        OSError: If the folder or the lock's file cannot be made.
    """
    private_files.make_folder(folder.parent)
    private_files.make_folder(folder)
    with private_files.locked(folder / LOCK_FILE):
        yield


def append(folder: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Append a line for each entry, all of one reply in one piece, wait for the disk, then write the head.

    The caller holds the lock.

    Raises:
        LogError: If the log is not what its head says.
        OSError: If it cannot be written.
    """
    head = _checked_head(folder)
    private_files.make(folder / LOG_FILE)
    with (folder / LOG_FILE).open("a+b") as file:  # whatever is read, what is written goes to the end
        file.seek(head.bytes)
        rest, pieces = file.read(), [b""]
        if rest:  # a process ended while it wrote this, and did not send it
            log.warning("the log of what leaves this node ended in the middle of a reply, which was not sent")
            torn = not rest.endswith(b"\n")
            cut = rest.removesuffix(b"\n").split(b"\n")
            for line in cut:
                head = extended(head, line)
            mark = {"time": stamp(time.time()), "kind": INTERRUPTED, "lines": len(cut), "torn": torn}
            pieces, entries = [b"\n" * torn], [mark, *entries]
        for entry in entries:
            line = json.dumps({"n": head.lines + 1, **entry, "before": head.sha256}).encode()
            head = extended(head, line)
            pieces += [line, b"\n"]
        file.write(b"".join(pieces))
        file.flush()
        os.fsync(file.fileno())
    head.write(folder)


def _checked_head(folder: Path) -> Head:
    """Return the head, after a look whether the log ends with the line that it names; a new log gets its head.

    Raises:
        LogError: If lines are missing at the end, or the head is.
    """
    path, head = folder / LOG_FILE, Head.read(folder)
    size = path.stat().st_size if path.exists() else 0
    if head is None and not size:
        head = Head()
        head.write(folder)  # before the first line: a log without a head is never our own doing
    if head is None or size < head.bytes or (head.lines and digest(_last_line(path, head.bytes)) != head.sha256):
        found = f"{HEAD_FILE} is missing" if head is None else f"line {head.lines} is not the one that {HEAD_FILE} has"
        raise LogError(
            f"{path} has {plural(size, 'byte')}, and {found}: see `fedshift site log`; to begin a new log, move "
            f"{LOG_FILE} and {HEAD_FILE} elsewhere"
        )
    return head


def _last_line(path: Path, end: int) -> bytes:
    """Return the line that ends at a byte of a file, without its end."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data[data.rfind(b"\n", 0, end - 1) + 1 : end].removesuffix(b"\n")


# --- the switch -------------------------------------------------------------------------------------


def is_off(folder: Path) -> bool:
    """Tell whether the owner has switched a node off; ``folder`` is the node's."""
    return (folder / OFF_FILE).exists()


def switch_off(folder: Path) -> None:
    """Let no reply be logged any more, so that none leaves; one that is logged already may be on its way.

    Raises:
        DiskError: If it cannot be written.
    """
    with atomic_io.writing(folder), locked(folder):  # no reply is between its look for the file and its lines
        data = json.dumps({"time": stamp(time.time())}).encode()
        atomic_io.write_durably(folder / OFF_FILE, data, private=True)


def switch_on(folder: Path) -> bool:
    """Take :func:`switch_off` back; return whether there was anything to take back.

    Raises:
        DiskError: If it cannot be removed.
    """
    with atomic_io.writing(folder / OFF_FILE):
        was_off = is_off(folder)
        (folder / OFF_FILE).unlink(missing_ok=True)
    return was_off
