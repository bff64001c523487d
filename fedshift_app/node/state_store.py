"""What a node remembers, on disk: Flower keeps ``context.state`` in a process's memory only.

A node's private parts (a personal head, BatchNorm, a style encoder) must outlive its SuperNode's process, and the
run: one that is resumed goes on from each node's memory as it was after the round of the checkpoint. So memory is
written after each training, one file per round. A real node reads it at each message, and leaves nothing of it in
``context.state``: a SuperNode keeps that of all its runs, and not that of a message whose process ended early. A
simulated node reads it where its process has none, or one of an earlier round.

A real node keeps it in a folder of its own; a simulated one in the run folder, which is on the same machine.

A run that was resumed after round 5 repeats round 6, and the files of the first round 6 count no longer. So each
file is named by its round and by how often the run had been resumed, and the server says after which rounds it was.
"""

import hashlib
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from fedshift_app.node.data import Place
from fedshift_app.node.state_folder import node_folder
from fedshift_core import atomic_io, private_files
from fedshift_core.arrays import Arrays
from fedshift_core.disk_use import bytes_in
from fedshift_core.errors import FedShiftError, StorageError
from fedshift_core.kept_rounds import KEEP_STEPS, kept_rounds
from fedshift_core.limits import MOST_KEPT
from fedshift_core.wire.messages import RunHeader

START_STEM = "start-"  # begins the name of what the node began from (``fedshift_app.node.one_time_payload``)
#: Rounds: those that the run is asked to keep, and the best until each of them and of the usual ones. A server that
#: names more is not heeded.
MOST_CHOSEN = 1 + len(KEEP_STEPS) + 2 * MOST_KEPT
#: What a real node keeps of earlier runs. A server says which run a message is of, so new runs never push others out:
#: a run is removed only when nothing was written to it for so long, the last few never, and where the rest fills its
#: share of the disk a new run is refused.
KEEP_DAYS = 30
KEEP_RUNS = 3
MOST_BYTES = 10 * 2**30
_NAME = re.compile(r"round-(\d{5,})-(\d+)-([0-9a-f]{16})\.safetensors")
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Version:
    """A node's memory after one round.

    Attributes:
        server_round: The round in which the node trained.
        resumes: How often the run had been resumed then.
        digest: Start of the SHA-256 of the file.
    """

    server_round: int
    resumes: int
    digest: str
    path: Path

    def counts(self, resumed_after: tuple[int, ...]) -> bool:
        """Tell whether it belongs to the run as it went on, not to rounds that were repeated."""
        later = resumed_after[self.resumes :]
        return self.resumes <= len(resumed_after) and all(self.server_round <= after for after in later)

    def read(self) -> Arrays:
        """Return the arrays.

        Raises:
            StorageError: If the file is not what was written: to go on without would silently start anew.
        """
        try:
            data = self.path.read_bytes()
            if _digest(data) != self.digest:
                raise ValueError("it is not what was written: its hash differs")
            return atomic_io.unpack(data)
        except (OSError, ValueError) as error:
            raise StorageError(
                f"cannot read a node's private parts from {self.path}: {error}; remove it to start without them"
            ) from None


@dataclass(frozen=True)
class StateStore:
    """Where a node keeps its memory of a run.

    Attributes:
        folder: The node's folder; None where nothing is kept on disk.
        resumed_after: The rounds after which the run was resumed.
        expected: The node has memory of this round or a later one, by the server's word; 0 for none.
        chosen: Rounds of which the server keeps the checkpoint in addition to the usual ones.
        own: The folder is the node's, which clears away its earlier runs; else it is in the run folder.
    """

    folder: Path | None
    resumed_after: tuple[int, ...] = ()
    expected: int = 0
    chosen: tuple[int, ...] = ()
    own: bool = False

    def versions(self) -> list[Version]:
        """Return the versions that count, by round."""
        if self.folder is None or not self.folder.is_dir():
            return []
        versions = [version for path in self.folder.iterdir() if (version := _version(path))]
        return sorted((v for v in versions if v.counts(self.resumed_after)), key=lambda v: (v.server_round, v.resumes))

    def recall(self, before: int | None = None) -> tuple[int, Arrays]:
        """Return the last round that was remembered, and what; 0 and nothing where there is none.

        Args:
            before: Only rounds before this one count: a node that trains in it may have done so already, and its
                process may have died before it could answer.

        Raises:
            StorageError: If it cannot be read.
        """
        versions = [v for v in self.versions() if before is None or v.server_round < before]
        return (versions[-1].server_round, versions[-1].read()) if versions else (0, {})

    def remember(self, server_round: int, memory: Arrays) -> None:
        """Write the memory of a round; nothing is written where there is nothing to remember.

        What no checkpoint of the server can ask for any more is removed: while a round is on its way, it has those
        that it kept after the round before (``kept_rounds``).

        Raises:
            StorageError: If it cannot be written: private parts must not be lost unnoticed.
        """
        if not memory or self.folder is None:
            return
        data = atomic_io.pack(memory)
        name = f"round-{server_round:05d}-{len(self.resumed_after)}-{_digest(data)}.safetensors"
        try:
            self.make()
            # A simulated node leaves its name to the server's checkpoint, which counts only if the file is there.
            atomic_io.write_durably(self.folder / name, data, named=self.own, private=self.own)
            # A node that was given up for lost may end after its next round: what that left stays.
            later = [version for version in self.versions() if version.server_round > server_round]
            needed = {name} | {version.path.name for version in (*self._needed(server_round), *later)}
            for path in self.folder.iterdir():
                if path.name not in needed and not path.name.startswith(START_STEM):
                    path.unlink()
        except OSError as error:
            raise StorageError(f"cannot keep this node's private parts in {self.folder}: {error.strerror}") from None

    def make(self) -> None:
        """Make the folder, if there is to be one and it is not there.

        Raises:
            OSError: If it cannot be made.
            FedShiftError: If this is a new run, and what the node keeps of others fills its share of the disk.
        """
        folder = self.folder
        if folder is None or folder.is_dir():
            return
        if not self.own:
            folder.mkdir(exist_ok=True)  # a run folder that is gone is not made again
            return
        node = folder.parent
        private_files.make_folder(node.parent)
        private_files.make_folder(node)
        runs = sorted(node.glob("run-*/"), key=lambda path: path.stat().st_mtime)
        oldest = time.time() - KEEP_DAYS * 86_400
        for run in runs[:-KEEP_RUNS]:
            if run.stat().st_mtime < oldest:
                shutil.rmtree(run)
        if (taken := bytes_in(node)) > MOST_BYTES:
            raise FedShiftError(
                f"this node keeps {taken / 2**30:.1f} GiB of runs in {node}, more than {MOST_BYTES / 2**30:g} GiB, and "
                "takes no new run",
                f"remove the folders of runs that are over: {node}/run-*",
            )
        private_files.make_folder(folder)

    def _needed(self, server_round: int) -> list[Version]:
        """Return the last version up to each checkpoint that the server has while this round is on its way."""
        versions = self.versions()
        rounds = (*kept_rounds(server_round - 1), *self.chosen)
        upto = ([v for v in versions if v.server_round <= kept] for kept in rounds)
        return [older[-1] for older in upto if older]


def store_for(header: RunHeader, where: Place) -> StateStore:
    """Return where a node keeps what it remembers, by what a message says of the run.

    Raises:
        FedShiftError: If a real node is not given a run's id, or has no folder to keep anything in.
    """
    chosen = header.chosen[:MOST_CHOSEN]
    if where.shared:
        folder = simulated(Path(header.kept_in), where.partition_id) if header.kept_in else None
        return StateStore(folder, header.resumed_after, header.memory_round, chosen)
    if not _RUN_ID.fullmatch(header.run_id):  # it becomes the name of a folder
        raise FedShiftError(f"the server says that the run is {header.run_id[:40]!r}, expected 32 hexadecimal digits")
    node = node_folder(where.partition_id, where.domain, str(where.source.data_dir))
    return StateStore(node / f"run-{header.run_id}", header.resumed_after, header.memory_round, chosen, own=True)


def simulated(base: Path, index: int) -> Path:
    """Return the folder of a simulated node, whose place in the federation is its partition."""
    return base / f"node-{index}"


def keep_last(base: Path, resumed_after: tuple[int, ...], chosen: int = 0) -> None:
    """Remove all but the last memory of each simulated node, and that of a ``chosen`` round: nobody needs others.

    Raises:
        DiskError: If they cannot be removed.
    """
    with atomic_io.writing(base):
        for folder in base.iterdir():
            versions = StateStore(folder, resumed_after).versions()
            needed = versions[-1:] + [v for v in versions if v.server_round <= chosen][-1:]
            for path in folder.iterdir():
                if _version(path) not in needed:
                    path.unlink()


def _version(path: Path) -> Version | None:
    match = _NAME.fullmatch(path.name)
    return Version(int(match[1]), int(match[2]), match[3], path) if match else None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
