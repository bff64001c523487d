"""Checkpoints: all that a run needs to go on after a round, in files that are complete or do not count.

    checkpoint/weights-00007.safetensors    the shared weights after round 7
    checkpoint/knowledge-00007.safetensors  what the method shares besides
    checkpoint/state-00007.safetensors      what only the server keeps, if there is any
    checkpoint/moments-00007.safetensors    what the server's optimiser keeps, if there is any
    checkpoint/averaged-00007.safetensors   BatchNorm's statistics that training goes on with, where the
                                            weights have retaken ones (model.bn_keep)
    checkpoint/figures-00007.json           of a round that stays besides (``model_selection``); no part of it
    checkpoint/round-00007.json             written last: sizes and hashes of all, the nodes, what they keep
    checkpoint/nodes/                       what simulated nodes keep to themselves (``keeping``)

A checkpoint counts if its JSON file is there and all sizes and hashes agree.
"""

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedshift_core import atomic_io
from fedshift_core.arrays import Arrays
from fedshift_core.kept_rounds import kept_rounds
from strategies.federation.roster import Node

FORMAT = 2  # of the JSON file; 1 had no state
FOLDER, NODES_FOLDER = "checkpoint", "nodes"
_JSON = re.compile(r"round-(\d{5,})\.json")
_FILE = re.compile(
    r"(?:round|weights|knowledge|state|moments|averaged|figures)-(\d{5,})\.(?:json|safetensors)(?:\.part)?"
)


class Damaged(ValueError):  # noqa: N818 (a verdict, not a malfunction)
    """A checkpoint that must not be used; the message names the file and says why."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a full round.

    Attributes:
        server_round: The round, from 1.
        weights: The shared weights that the run keeps, in the order of the model.
        knowledge: What the method shares besides.
        state: What only the server keeps; with ``knowledge`` all that a strategy has from earlier rounds.
        memory: By index of the node, the last round in which it kept private arrays.
        nodes: All nodes that have ever answered, in the order of their index.
        seconds: How long the run has taken so far.
        writing: How long its folder has taken of that.
        moments: What the server's optimiser keeps.
        averaged: Those of the shared weights that training goes on with in their place.
    """

    server_round: int
    weights: Arrays
    knowledge: Arrays
    state: Arrays
    memory: dict[int, int]
    nodes: list[Node]
    seconds: float
    writing: float
    averaged: Arrays = field(default_factory=dict)
    moments: Arrays = field(default_factory=dict)

    @property
    def carried_on(self) -> Arrays:
        """The shared weights that training goes on with."""
        return {**self.weights, **self.averaged}


def save(folder: Path, checkpoint: Checkpoint, also: Collection[int] = ()) -> None:
    """Write a checkpoint and remove those that are not kept any more: all but ``kept_rounds`` and ``also``.

    Raises:
        DiskError: If it cannot be written; the checkpoints before are still there.
    """
    with atomic_io.writing(folder):
        folder.mkdir(exist_ok=True)
    number = checkpoint.server_round
    files = {}
    for kind, arrays in (
        ("weights", checkpoint.weights), ("knowledge", checkpoint.knowledge), ("state", checkpoint.state),
        ("moments", checkpoint.moments), ("averaged", checkpoint.averaged),
    ):  # fmt: skip
        if kind not in ("weights", "knowledge") and not arrays:
            continue
        data = atomic_io.pack(arrays)
        name = f"{kind}-{number:05d}.safetensors"
        atomic_io.write_durably(folder / name, data, named=False)
        files[kind] = {
            "file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "names": list(arrays),
        }  # fmt: skip
    content = {
        "format": FORMAT,
        "round": number,
        "seconds": checkpoint.seconds,
        "writing": checkpoint.writing,
        "files": files,
        "memory": {str(index): kept for index, kept in sorted(checkpoint.memory.items())},
        "nodes": [vars(node) for node in checkpoint.nodes],  # asdict copies, which takes a while for a thousand
    }
    atomic_io.write_atomically(json_file(folder, number), json.dumps(content) + "\n")
    needed = {*kept_rounds(number), *also}
    _remove(folder, [written for written in _files(folder) if written not in needed])


def json_file(folder: Path, server_round: int) -> Path:
    """Return the file that makes a checkpoint count."""
    return folder / f"round-{server_round:05d}.json"


def rounds(folder: Path) -> list[int]:
    """Return the rounds that have a checkpoint, damaged or not, last first."""
    found = (_JSON.fullmatch(path.name) for path in folder.glob("round-*.json"))
    return sorted((int(match[1]) for match in found if match), reverse=True)


def load(folder: Path, server_round: int, formats: Collection[int] = (1, FORMAT)) -> Checkpoint:
    """Read a checkpoint.

    Args:
        folder: Where checkpoints are.
        server_round: The round.
        formats: Those that will do; a run goes on from one that this version wrote only.

    Raises:
        Damaged: If a file is missing or is not what was written.
    """
    path = json_file(folder, server_round)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] not in formats:
            raise Damaged(f"{path}: format {content['format']!r}, needed is {' or '.join(map(str, formats))}")
        return Checkpoint(
            server_round=int(content["round"]),
            weights=_arrays(folder, content["files"]["weights"]),
            knowledge=_arrays(folder, content["files"]["knowledge"]),
            state=_arrays(folder, content["files"]["state"]) if "state" in content["files"] else {},
            averaged=_arrays(folder, content["files"]["averaged"]) if "averaged" in content["files"] else {},
            moments=_arrays(folder, content["files"]["moments"]) if "moments" in content["files"] else {},
            memory={int(index): int(kept) for index, kept in content["memory"].items()},
            nodes=[_node(told) for told in content["nodes"]],
            seconds=float(content["seconds"]),
            writing=float(content["writing"]),
        )
    except Damaged:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path}: {type(error).__name__}: {error}") from None


def remove_after(folder: Path, server_round: int) -> None:
    """Remove what was written of later rounds."""
    _remove(folder, [written for written in _files(folder) if written > server_round])


def _files(folder: Path) -> dict[int, list[Path]]:
    """Return all files by their round; the JSON file, without which the others do not count, comes first."""
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("*"), key=lambda path: not path.name.startswith("round-")):
        if match := _FILE.fullmatch(path.name):
            found.setdefault(int(match[1]), []).append(path)
    return found


def _remove(folder: Path, numbers: list[int]) -> None:
    files = _files(folder)
    with atomic_io.writing(folder):
        for number in sorted(numbers, reverse=True):  # whenever it is killed, the last that is left is a whole one
            for path in files[number]:
                path.unlink()


def _arrays(folder: Path, told: dict[str, Any]) -> Arrays:
    """Read a file of arrays, in the order in which they were."""
    path = folder / str(told["file"])
    if not path.is_file():
        raise Damaged(f"{path} is missing")
    data = path.read_bytes()
    if len(data) != told["bytes"]:
        raise Damaged(f"{path} has {len(data)} bytes, written were {told['bytes']}")
    if hashlib.sha256(data).hexdigest() != told["sha256"]:
        raise Damaged(f"{path} is not what was written: its hash differs")
    arrays = atomic_io.unpack(data)
    return {str(name): arrays[name] for name in told["names"]}


def _node(told: dict[str, Any]) -> Node:
    unheld = tuple((str(domain), int(number)) for domain, number in told["unheld_tests"])
    return Node(**told | {"class_counts": tuple(told["class_counts"]), "unheld_tests": unheld})
