"""Finished runs that several tests look at: each configuration runs once in a session, whichever worker asks first."""

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import Run

from fedshift.run.launch import runner

#: Tests ask whether a run does what it should, seldom how well it learns.
FEWER = "allocation.share=0.2"


def flat_keys(experiment: str, given: dict[str, Any], *, few: bool = True) -> dict[str, Any]:
    """Return the keys of a run: ``evaluate_fraction=0.2`` becomes ``evaluate-fraction``.

    Of the embedded digits each node has a fifth, unless the test says how many or is not ``few``: 57 images where four
    nodes run.
    """
    keys = {"experiment": experiment} | {key.replace("_", "-"): value for key, value in given.items()}
    if few and experiment == "handwritten" and "allocation." not in str(keys.get("set", "")):
        keys["set"] = f"{FEWER} {keys.get('set', '')}".strip()
    return keys


class FinishedRuns:
    """Keeps the folders of finished inline runs by their configuration, for all workers of a session."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        base = factory.getbasetemp()  # of an xdist worker: a folder in that of the session
        self._folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished-runs"
        self._folder.mkdir(exist_ok=True)

    def copy(self, to: Path, *given: Any, **flat: Any) -> Run:
        """Copy the finished run of a configuration into a folder, where the test may change it."""
        kept = self.shared(*given, **flat).folder
        place, number = to / kept.name, 0
        while place.exists():  # another one of the same second, as a run itself would name it
            number += 1
            place = to / f"{kept.name}-{number}"
        return Run(shutil.copytree(kept, place))

    def shared(self, experiment: str = "handwritten", *, nodes: int = 4, **given: Any) -> Run:
        """Return the finished run of a configuration itself, which no test may change."""
        flat = flat_keys(experiment, given)
        requested = json.dumps([nodes, flat], sort_keys=True)
        folder = self._folder / hashlib.sha256(requested.encode()).hexdigest()[:16]
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
            name = folder / "name"
            if not name.is_file():  # it never ran, or failed: then it fails again here
                made = runner.run_inline(flat | {"output-dir": str(folder / "runs")}, nodes)
                name.write_text(made.name)
            return Run(folder / "runs" / name.read_text())
