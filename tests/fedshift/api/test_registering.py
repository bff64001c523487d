"""Methods of a notebook or a script run here, in worker processes and in Flower's simulation, with the same bits."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from support import ran, refusal_of
from torch import Tensor

import fedshift as fs
from fedshift_app.config import plugins
from fedshift_core import extensions

FEW: Any = {"rounds": 2, "nodes": 2, "train": {"epochs": 1}, "allocation": {"share": 0.06}, "progress": False}
FEW |= {"engine": "inline", "dataset": {"domains": ["scan", "sketch"]}}
#: What a person writes into a script, whose classes are of ``__main__``; it prints the hash of each way to run it.
SCRIPT = """
import sys
import fedshift as fs

SCALE = 2.0


class MineParams(fs.Params):
    mu: float = fs.Field(0.5, ge=0)


def scaled(value):
    return SCALE * value


class Mine(fs.Client[MineParams]):
    def loss(self, batch):
        features, logits = self.forward(batch.x)
        length = scaled(self.params.mu * features.square().mean())
        return {"ce": fs.losses.cross_entropy(logits, batch.y), "length": length}


class Equal(fs.Strategy):
    def weights(self, updates):
        return [1 / len(updates)] * len(updates)


fs.register("mine", client=Mine, strategy=Equal, terms=["length"])
few = {"rounds": 2, "nodes": 4, "train": {"epochs": 1}, "allocation": {"share": 0.06}, "progress": False}
for word in sys.argv[1:]:
    keys = {"engine": "simulation"} if word == "simulation" else {"engine": "inline", "workers": int(word)}
    print(fs.run("handwritten", method="mine", **keys, **few).results.weights_sha256)
"""


@pytest.fixture(autouse=True)
def _others_know_nothing_of_it(monkeypatch: pytest.MonkeyPatch, here: Path) -> Any:
    monkeypatch.setenv("FEDSHIFT_CACHE", str(here / "cache" / "images"))
    monkeypatch.setenv(plugins.ALLOWED, "")
    yield
    extensions.forget()


class Longer(fs.Client[fs.Params]):
    def loss(self, batch: fs.Batch) -> dict[str, Tensor]:
        features, logits = self.forward(batch.x)
        return {"ce": fs.losses.cross_entropy(logits, batch.y), "length": 0.1 * features.square().mean()}


def registered(client: Any = Longer, name: str = "longer") -> fs.Method:
    return fs.register(name, client=client, terms=["length"])


def run(name: str, method: str = "longer", **more: Any) -> fs.Run:
    return fs.run("handwritten", method=method, name=name, **FEW | more)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("way", ["2", "simulation"])
def test_a_scripts_classes_run_in_worker_processes_and_in_flowers_simulation(way: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = ran("script.py", "1", way, env={"OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(ended.stdout.split()) == 2 and len({*ended.stdout.split()}) == 1


def test_a_registered_method_is_one_like_others(tmp_path: Path) -> None:
    assert registered().name == "longer"
    made = run("first")
    (file,) = made.config["plugins"]
    assert Path(file).name == "longer.carried" and Path(file).stat().st_mode & 0o077 == 0
    assert Path(file).parent.parent == tmp_path / "cache" / "registered"
    assert "plugin longer.carried" in (made.folder / "config.yaml").read_text()
    assert made.model().predict(np.zeros((8, 8, 3), np.uint8))
    other = run("second", "fedavg")
    assert other.config["plugins"] == []
    table = fs.compare([made, other])
    assert not any("plugin" in line for line in table.numbers.warnings) and len(table.numbers.rows) == 2


def test_a_run_goes_on_with_the_class_that_it_had(tmp_path: Path) -> None:
    registered()
    first = run("first")

    class Other(Longer):
        def loss(self, batch: fs.Batch) -> dict[str, Tensor]:
            return super().loss(batch) | {"length": self.forward(batch.x)[0].square().mean()}

    registered(Other)
    second = run("second")
    assert second.results.weights_sha256 != first.results.weights_sha256
    more = fs.run(resume=first, rounds=3, engine="inline", progress=False)
    assert more.config["plugins"] == fs.load("runs/first").config["plugins"] != second.config["plugins"]
    again = run("third")
    assert again.results.weights_sha256 == second.results.weights_sha256


def test_a_file_is_read_only_where_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registered()
    made = run("first")
    (file,) = made.config["plugins"]
    extensions.forget()
    monkeypatch.setenv(plugins.ALLOWED, "")
    text = refusal_of(fs.ConfigError, fs.run, "handwritten", set=f"plugins=[{file}]", engine="inline")
    assert text.startswith("plugins: ") and "is not run here" in text
    Path(file).write_bytes(b"nothing")
    monkeypatch.setenv(plugins.ALLOWED, file)
    assert "cannot be loaded by Python" in refusal_of(fs.ConfigError, fs.run, "handwritten", set=f"plugins=[{file}]")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"name": "fedprox"}, "'fedprox'"),
        ({"name": "a b"}, "'a b'"),
        ({"client": int}, "client"),
        ({"strategy": Longer}, "strategy"),
        ({"term": ["x"]}, "term"),
        ({"of_features": ["x"]}, "of_features"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(given: Any, named: str) -> None:
    with refused(fs.ConfigError, "register", named) as caught:
        fs.register(**{"name": "mine", "client": Longer} | given)
    assert "\n" not in str(caught.value)


def test_what_no_process_can_have_is_refused_with_a_way_out() -> None:
    lock = threading.Lock()

    class Locked(Longer):
        def start_round(self, server_round: int) -> None:
            with lock:
                super().start_round(server_round)

    with pytest.raises(fs.ConfigError, match=r"'locked' .*Python file"):
        fs.register("locked", client=Locked)
