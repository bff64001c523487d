"""Sweeps whose runs are played by a script: it makes the folders that runs make, and fails as it is given."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_folders import RESULTS, STATUS

from fedshift.lab.grid import commands
from fedshift.lab.grid.sweep import grid
from fedshift_app.run.versions import versions
from fedshift_core.yaml_files import as_yaml

#: Does as a run does: makes its folder, then its results. What happens to it is said in a file named after its seed.
SCRIPT = """
import json, os, pathlib, sys, time
given = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
home = pathlib.Path(__file__).parent
fate = home / f"fate-{given['seed']}"
acts = fate.read_text().split("\\n") if fate.exists() else []
act, rest = (acts[0], acts[1:]) if acts else ("", [])
fate.write_text("\\n".join(rest))
with (home / "started").open("a") as file:
    file.write(f"{given['seed']} {'resumed' if 'resume' in given else 'new'} {os.getpid()}\\n")
if act == "refuse" and "resume" in given:
    sys.exit("error: resume: the weights of the checkpoint are not of the model")
folder = pathlib.Path(given.get("resume") or f"{given['output-dir']}/run-{given['seed']}-{time.time_ns()}")
folder.mkdir(exist_ok=True)
(folder / "config.yaml").write_text((home / f"config-{given['seed']}.yaml").read_text())
status = STATUS | {"state": "training", "error": "a node is lost", "round": 1, "rounds": 2}
(folder / "status.json").write_text(json.dumps(status))
print("round 1/2")
if act == "fail":
    sys.exit("Traceback ...\\nerror: no node is left\\nand more")
if act == "wrong":
    print("error: modules f2dc: the network has no feature map", file=sys.stderr)
    sys.exit(78)
if act == "sleep":
    time.sleep(60)
if act == "die":
    os.kill(os.getpid(), 9)
results = RESULTS | {"avg": 50.0 + int(given["seed"]), "seconds": 1.5, "lost": {"1": [3]} if act == "lose" else {}}
(folder / "results.json").write_text(json.dumps(results))
sys.exit(3 if act == "late" else 0)
"""
SCRIPT = f"STATUS, RESULTS = {STATUS}, {RESULTS}\n{SCRIPT}"


class Compared:
    """What the comparison was given."""

    calls: list[tuple[list[str], str, bool]]


class Played:
    """Sweeps over seeds whose runs are played by ``SCRIPT``."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.script = home / "play.py"
        self.script.write_text(SCRIPT)
        self.check: Callable[..., object] = lambda *_: None  # of the data of a run
        self.images: dict[str, dict[str, str]] | None = None  # the fingerprints that runs write down

    def fate(self, seed: int, *acts: str) -> None:
        (self.home / f"fate-{seed}").write_text("\n".join(acts))

    def prepare(self, *arguments: str) -> None:
        """Write what each run's folder will hold."""
        requested = grid.read(["handwritten", *arguments])
        for point in grid.points(requested)[0]:
            fields = {
                "resolved": point.config.model_dump(mode="json"), "engine": "inline", "nodes": point.nodes,
                "run_id": "x", "versions": versions(point.config),
            }  # fmt: skip
            if self.images is not None:
                fields["images"] = self.images
            (self.home / f"config-{point.config.seed}.yaml").write_text(as_yaml(fields))

    def sweep(self, *arguments: str, paper: str = "") -> None:
        one = [] if any(argument.startswith("jobs=") for argument in arguments) else ["jobs=1"]
        given = [f"output-dir={self.home / 'runs'}", *arguments, *one]
        self.prepare(*arguments)
        commands.sweep(["handwritten", *given], paper=paper)

    @property
    def started(self) -> list[str]:
        """Return how each run was started: its seed, and whether it was resumed."""
        return [line.rpartition(" ")[0] for line in self._lines()]

    @property
    def pids(self) -> list[int]:
        return [int(line.split()[-1]) for line in self._lines()]

    def _lines(self) -> list[str]:
        file = self.home / "started"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def folder(self) -> Path:
        (result,) = (self.home / "runs").glob("sweep-*")
        return result

    @property
    def points(self) -> list[dict[str, Any]]:
        return list(json.loads((self.folder / "sweep.json").read_text())["points"])

    def states(self) -> list[str]:
        return [point["state"] for point in self.points]
