"""Checkpoints: everything a run needs to continue after a round, in files that are complete or do not count.

    checkpoint/weights-00007.safetensors    the shared weights after round 7
    checkpoint/knowledge-00007.safetensors  what the method shares besides weights
    checkpoint/state-00007.safetensors      what only the server keeps, if there is any
    checkpoint/moments-00007.safetensors    what the server's optimiser keeps, if there is any
    checkpoint/averaged-00007.safetensors   arrays that training continues with, where the kept
                                            model has others
    checkpoint/NAME-00007.json              of a round that ``model_selection`` keeps (``sections``); not part of it
    checkpoint/round-00007.json             written last: hashes of all files, the nodes, what they keep, the
                                            configuration that the round was trained with, and its hash
    checkpoint/nodes/                       what simulated nodes keep to themselves (``node.state_store``)

A checkpoint counts if its JSON file is there and all hashes agree.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from fedshift_app.config.sections import RunConfig
from fedshift_core import atomic_io
from fedshift_core.arrays import Arrays
from fedshift_core.kept_rounds import FOLDER as FOLDER
from fedshift_core.kept_rounds import kept_rounds
from fedshift_strategies.federation.nodes import Node

if TYPE_CHECKING:  # it imports Flower, which `fedshift compare` does without
    from fedshift_strategies.federation.context import RoundResult

NODES_FOLDER = "nodes"
NEEDED = ("weights", "knowledge")
KINDS = (*NEEDED, "state", "moments", "averaged")  # of arrays
JSON = "round-{:05d}.json"  # without which a checkpoint does not count
_JSON = re.compile(r"round-(\d{5,})\.json")
NODES = TypeAdapter(list[Node])
_NODE_FIELDS = tuple(each.name for each in fields(Node) if each.compare)
_FILE = re.compile(r"[a-z_]+-(\d{5,})\.(?:json|safetensors)(?:\.part)?")


class Damaged(ValueError):  # noqa: N818 (a verdict, not a malfunction)
    """A checkpoint that must not be used; the message names the file and says why."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a full round.

    Attributes:
        server_round: The round, from 1.
        weights: The shared weights that the run keeps, in the order of the model.
        knowledge: What the method shares besides weights.
        state: What only the server keeps; with ``knowledge`` all that a strategy has from earlier rounds.
        memory: By index of the node, the last round in which it kept private arrays.
        nodes: All nodes that have ever answered, in the order of their index.
        seconds: How long the run has taken so far.
        writing: Seconds of these that writing its folder took.
        moments: What the server's optimiser keeps.
        averaged: Shared weights that training continues with in place of the kept ones.
        config: The parts of ``config.yaml`` that decide numbers (``recorded``), as the round was trained with them.
        changed: The settings that were changed between rounds, as ``results.json`` has them.
    """

    server_round: int
    weights: Arrays
    knowledge: Arrays = field(default_factory=dict)
    state: Arrays = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    seconds: float = 0.0
    writing: float = 0.0
    averaged: Arrays = field(default_factory=dict)
    moments: Arrays = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    changed: Sequence[Mapping[str, Any]] = ()


@dataclass
class Past:
    """The state that an interrupted run left in its folder (``fedshift_app.run.resuming``).

    Attributes:
        path: The folder.
        run_id: Names the run for its nodes.
        engine: The engine it ran on: ``simulation``, ``deployment`` or ``inline``.
        num_nodes: Number of nodes at its start.
        images: The fingerprints of its images by domain and split (``node.data``).
        resumed_after: The rounds after which it was resumed before.
        lock: The lock of the process that continues it.
        checkpoint: Its state after the last full round; of round 0 without anything if there is none.
        history: Its rounds up to the checkpoint.
        repeats: How many rounds it may have begun after the checkpoint, which are begun once more.
        repeated: Those, and the ones of earlier times that it was resumed.
        changed: The settings that were changed between rounds, as ``results.json`` has them.
    """

    path: Path
    run_id: str
    engine: str
    num_nodes: int
    images: Mapping[str, Mapping[str, str]]
    resumed_after: tuple[int, ...]
    lock: atomic_io.Lock | None
    checkpoint: Checkpoint = field(default_factory=lambda: Checkpoint(0, {}))
    history: "Sequence[RoundResult]" = ()
    repeats: int = 0
    repeated: int = 0
    changed: tuple[Mapping[str, Any], ...] = ()

    @property
    def completed(self) -> int:
        """The number of rounds that need not be repeated."""
        return self.checkpoint.server_round


def save(folder: Path, checkpoint: Checkpoint, also_kept: Collection[int] = ()) -> None:
    """Write a checkpoint and remove all others but those of ``kept_rounds`` and ``also_kept``.

    Raises:
        DiskError: If it cannot be written; the checkpoints before are still there.
    """
    with atomic_io.writing(folder):
        folder.mkdir(exist_ok=True)
    number = checkpoint.server_round
    files = {}
    for kind in KINDS:
        arrays: Arrays = getattr(checkpoint, kind)
        if kind not in NEEDED and not arrays:
            continue
        data = atomic_io.pack(arrays)
        name = f"{kind}-{number:05d}.safetensors"
        atomic_io.write_durably(folder / name, data, named=False)
        files[kind] = {
            "file": name,
            "sha256": hashlib.sha256(data).hexdigest(),
            "names": list(arrays),
        }
    content = {
        "round": number,
        "seconds": checkpoint.seconds,
        "writing": checkpoint.writing,
        "files": files,
        "memory": {str(index): kept for index, kept in sorted(checkpoint.memory.items())},
        "config": {"sha256": _digest(checkpoint.config), "values": checkpoint.config},
        "changed": list(checkpoint.changed),
        # asdict copies, which takes a while for a thousand
        "nodes": [{name: getattr(node, name) for name in _NODE_FIELDS} for node in checkpoint.nodes],
    }
    atomic_io.write_atomically(folder / JSON.format(number), json.dumps(content) + "\n")
    saved = rounds(folder)  # not each round has a checkpoint (``checkpoint_seconds``)
    kept_files = {next((old for old in saved if old <= kept), number) for kept in kept_rounds(number)} | {*also_kept}
    _remove(folder, [written for written in _files(folder) if written not in kept_files])


def is_due(config: RunConfig, checkpoint: Checkpoint, since: float) -> bool:
    """Tell whether a round gets a checkpoint (``checkpoint_seconds``).

    Each round has one where nodes keep private parts of it, or where a round is kept by its validation accuracy. The
    first has one always, so that a run that is killed early can be continued.

    Args:
        config: The run.
        checkpoint: That of the round.
        since: Seconds since the last one was written.
    """
    if since >= config.checkpoint_seconds or checkpoint.server_round in (1, config.rounds, *config.keep_rounds):
        return True
    return bool(checkpoint.memory) or config.keep != "last" or config.evaluate.patience > 0


def rounds(folder: Path) -> list[int]:
    """Return the rounds that have a checkpoint, damaged or not, last first."""
    matches = (_JSON.fullmatch(path.name) for path in folder.glob("round-*.json"))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def load(folder: Path, server_round: int) -> Checkpoint:
    """Read a checkpoint.

    Args:
        folder: Where checkpoints are.
        server_round: The round.

    Raises:
        Damaged: If a file is missing or is not what was written.
    """
    path = folder / JSON.format(server_round)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        files = {kind: {} for kind in NEEDED} | content["files"]
        return Checkpoint(
            server_round=int(content["round"]),
            **{kind: _arrays(folder, files[kind]) if kind in files else {} for kind in KINDS},
            memory={int(index): int(kept) for index, kept in content["memory"].items()},
            nodes=NODES.validate_python(content["nodes"]),
            seconds=float(content["seconds"]),
            writing=float(content["writing"]),
            config=_config(path, content),
            changed=content["changed"],
        )
    except Damaged:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path}: {type(error).__name__}: {error}") from None


def last_config(folder: Path) -> Mapping[str, Any]:
    """Return the configuration that the last round was trained with; empty where none is recorded."""
    for number in rounds(folder):
        with contextlib.suppress(Damaged, OSError, ValueError, LookupError, TypeError, AttributeError):
            path = folder / JSON.format(number)
            return _config(path, json.loads(path.read_text(encoding="utf-8")))
    return {}


def _config(path: Path, content: Mapping[str, Any]) -> Mapping[str, Any]:
    values: Mapping[str, Any] = content["config"]["values"]
    if _digest(values) != content["config"]["sha256"]:
        raise Damaged(f"{path}: its configuration is not what was written: its hash differs")
    return values


def _digest(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def remove_after(folder: Path, server_round: int) -> None:
    """Remove the files of later rounds."""
    _remove(folder, [written for written in _files(folder) if written > server_round])


def _files(folder: Path) -> dict[int, list[Path]]:
    """Return all files by their round; the JSON file, without which the others do not count, comes first."""
    files: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("*"), key=lambda path: not path.name.startswith("round-")):
        if match := _FILE.fullmatch(path.name):
            files.setdefault(int(match[1]), []).append(path)
    return files


def _remove(folder: Path, numbers: list[int]) -> None:
    files = _files(folder)
    with atomic_io.writing(folder):
        for number in sorted(numbers, reverse=True):  # if it is killed, the last one left is complete
            for path in files[number]:
                path.unlink()


def _arrays(folder: Path, entry: dict[str, Any]) -> Arrays:
    """Return the arrays of a file, in their original order."""
    path = folder / str(entry["file"])
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise Damaged(f"{path} is not what was written: its hash differs")
    arrays = atomic_io.unpack(data)
    return {str(name): arrays[name] for name in entry["names"]}
