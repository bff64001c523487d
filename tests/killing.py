"""Short runs in this process that are killed as they write a file, and resumed."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Killed, Run

from fedshift.run.launch import runner
from fedshift_core import atomic_io

SHORT = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"  # 18 images a node
NODES, ROUNDS = 3, 3  # two nodes share a domain
#: A quick method in which the server and each node keep arrays from round to round.
KEEPING = "scaffold"

#: What is done of a write when the kill comes: nothing, half of it, all but the rename, all.
STAGES = ("before", "half", "unnamed", "after")


def killing(monkeypatch: pytest.MonkeyPatch) -> "KillAt":
    """Return a function: within its block a run is killed as it writes the file whose path ends so."""
    write, append = atomic_io.write_durably, atomic_io.append_line

    @contextlib.contextmanager
    def kill_at(end: str, stage: str) -> Iterator[None]:
        def killing_write(path: Path, data: bytes, **how: bool) -> None:
            if end not in str(path):
                return write(path, data, **how)
            if stage == "after":
                write(path, data, **how)
            elif stage != "before":
                part = path.with_name(path.name + atomic_io.PART)
                part.write_bytes(data if stage == "unnamed" else data[: len(data) // 2])
            raise Killed(str(path))

        def killing_append(path: Path, line: str) -> None:
            if f"{path.name}:{json.loads(line)['round']}" != end:
                return append(path, line)
            if stage == "after":
                append(path, line)
            elif stage != "before":
                with path.open("a") as file:
                    file.write(line if stage == "unnamed" else line[: len(line) // 2])
            raise Killed(end)

        with monkeypatch.context() as patch:
            patch.setattr(atomic_io, "write_durably", killing_write)
            patch.setattr(atomic_io, "append_line", killing_append)
            try:
                yield
            except Killed:
                return
        pytest.fail(f"nothing wrote {end}")

    return kill_at


KillAt = Callable[..., contextlib.AbstractContextManager[None]]


def start(folder: Path, nodes: int = NODES, **flat: Any) -> Run:
    """Run in this process; the run folder is the only one in ``folder``."""
    given = {"experiment": "handwritten", "rounds": ROUNDS, "output-dir": str(folder), "set": SHORT} | flat
    return Run(runner.run_inline(given, nodes))


def resume(folder: Path, nodes: int = NODES, **flat: Any) -> Run:
    return Run(runner.run_inline({"resume": str(only(folder))} | flat, nodes))


def only(folder: Path) -> Path:
    (result,) = folder.iterdir()
    return result


def outcome(run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return all that a run says but its times."""
    results, *rounds = (
        {key: value for key, value in said.items() if key not in ("seconds", "resumed_after")}
        for said in (run.results, *run.rounds)
    )
    return results, rounds
