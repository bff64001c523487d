"""A user's own file next to an experiment: a method with a merge and a state of its own, in every way to run."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import ConfigRecord, Message, RecordDict
from refusals import refused
from safetensors.numpy import load_file
from support import ROOT, Run, own_experiment
from typer.testing import CliRunner

from fedshift import cli
from fedshift.run.engine import inline
from fedshift.run.launch import runner
from fedshift_app import client_app
from fedshift_app.config import plugins as plugins_module
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.config.validating import from_json
from fedshift_app.run import build as run_build
from fedshift_app.run import resuming
from fedshift_core import extensions
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.wire.records import encode

FILE = '''
"""FedAvg with momentum on the server (FedAvgM), and a node that reads its scalars."""

import numpy as np
from pydantic import Field

from fedshift_clients.base import DomainClient
from fedshift_core.registry import Method
from fedshift_core.params import Params
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.updates import average


class MomentumParams(Params):
    beta: float = Field(0.9, ge=0, lt=1)


class Momentum(DomainStrategy):
    params_model = MomentumParams
    params: MomentumParams

    def start_run(self, weights):
        assert not self.state
        self.state = {name: np.zeros_like(array) for name, array in decode(weights).items()}
        self.knowledge = {"anchor": np.full(3, len(self.state), np.float32)}

    def tell(self, node, ask):
        return {"word": f"{node.domain} {ask.server_round}", "trains": int(ask.trains), "last": len(self.last_nodes)}

    def merge(self, updates, weights):
        before, mean = decode(self.sent), decode(average(updates, weights))
        self.state = {n: self.params.beta * self.state[n] + before[n] - mean[n] for n in mean}
        return encode({n: before[n] - self.state[n] for n in mean})


class Node(DomainClient):
    def received(self):
        domain, server_round = self.scalars["word"].split()
        assert int(server_round) == self.server_round
        assert len(self.knowledge["anchor"]) == 3
        self.memory["rounds"] = self.memory.get("rounds", np.zeros(1)) + self.scalars["trains"]


METHOD = Method(name="momentum", title="Momentum on the server", strategy=Momentum, client=Node, defaults={"beta": 0.5})
'''
EXPERIMENT = """
plugins: [my_method.py]
dataset: {name: handwritten, domains: [scan, sketch]}
model: {name: cnn}
train: {epochs: 1, batch_size: 12, lr: 0.02}
allocation: {counts: any, share: 0.06}
method: {name: momentum}
rounds: 2
"""


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the experiment and its file into a folder of their own; other tests know nothing of the method."""
    with own_experiment(tmp_path, monkeypatch, "my_method.py", FILE, EXPERIMENT) as file:
        yield file


def run(experiment: Path, name: str, **flat: Any) -> Run:
    given = {"experiment": str(experiment), "output-dir": str(experiment.parent / name)} | flat
    return Run(runner.run_inline(given, 2))


def kept(of: Run, kind: str) -> Arrays:
    return load_file(of.folder / "checkpoint" / f"{kind}-00002.safetensors")


def test_the_servers_state_decides_the_weights_and_is_kept(experiment: Path) -> None:
    mine, without = run(experiment, "mine"), run(experiment, "plain", set="method.beta=0")
    assert mine.results["weights_sha256"] != without.results["weights_sha256"]
    one, other = (kept(of, "weights") for of in (without, run(experiment, "fedavg", method="fedavg")))
    for name in one:  # w - (w - mean) is the mean but for rounding
        np.testing.assert_allclose(one[name], other[name], atol=1e-5)
    state = kept(mine, "state")
    assert state.keys() == one.keys() and any(array.any() for array in state.values())
    assert mine.rounds[-1]["nodes"] == [0, 1]
    assert "plugin my_method.py" in (mine.folder / "config.yaml").read_text()


def test_a_server_cannot_make_a_node_run_a_file(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a message names is run only if the node's own environment names it."""
    config = resolve({"experiment": str(experiment)}).model_dump_json()
    assert from_json(config).method["name"] == "momentum"
    monkeypatch.setenv(plugins_module.ALLOWED, "")
    extensions.forget()
    with pytest.raises(ConfigError, match=r"my_method\.py is not run here"):
        from_json(config)
    assert "momentum" not in [*registry.METHODS]
    fields = ConfigRecord({"server-round": 1, "node-index": 0, "engine": "simulation", "run": config})
    content = RecordDict({"arrays": encode({}), "knowledge": encode({}), "config": fields})
    (reply,) = inline.InlineGrid(client_app.app, 4).send_and_receive([Message(content, 1000, "query")])
    assert "is not run here" in reply.error.reason


def elsewhere(experiment: Path, monkeypatch: pytest.MonkeyPatch, name: str, **flat: Any) -> Path:
    """Make a run; return its ``config.yaml`` in another folder, for a process that knows nothing of its file."""
    folder = run(experiment, name, **flat).folder
    moved = experiment.parent / f"{name}-moved"
    folder.rename(moved)
    monkeypatch.setenv(plugins_module.ALLOWED, "")
    extensions.forget()
    return moved / "config.yaml"


def test_a_run_is_repeated_where_its_file_is_not_if_the_code_is_trusted(
    experiment: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = elsewhere(experiment, monkeypatch, "first", rounds=1)
    first = json.loads((config.parent / "results.json").read_text())
    (kept,) = yaml.safe_load(config.read_text())["plugins"]
    original = kept["path"]
    assert original == str(experiment.parent / "my_method.py")
    assert (config.parent / kept["file"]).read_text() == FILE
    assert kept["sha256"] == hashlib.sha256(FILE.encode()).hexdigest()
    assert resolve({"experiment": str(config)}).plugins == (original,)  # still there: the user's own
    Path(original).write_text(f"raise SystemExit('run without a word')\n{FILE}")
    extensions.forget()
    arguments = ["run", str(config), "nodes=2", "engine=inline", "report=false", f"output-dir={tmp_path / 'again'}"]
    ended = CliRunner().invoke(cli.app, arguments)
    assert isinstance(ended.exception, ConfigError)
    assert "--trust-plugins" in ended.exception.remedy
    assert not extensions._loaded  # nothing of it was run
    done = CliRunner().invoke(cli.app, [*arguments, "--trust-plugins"])
    assert str(config.parent / kept["file"]) in done.stderr, done.output
    (again,) = (tmp_path / "again").iterdir()
    assert Run(again).results["weights_sha256"] == first["weights_sha256"]
    (recorded,) = yaml.safe_load((again / "config.yaml").read_text())["plugins"]
    assert recorded == kept | {"path": str(config.parent / kept["file"])}


@pytest.mark.parametrize(
    ("old", "new"),
    [("file: plugins/", "file: ../plugins/"), ("sha256: ", "sha256: 0"), ("- /", "- ./"), ("  sha256: ", "  sha: ")],
)
def test_a_folder_cannot_have_other_code_run(
    old: str, new: str, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = elsewhere(experiment, monkeypatch, "first", rounds=1)
    (experiment.parent / "my_method.py").unlink()
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    for reads in (plugins_module.trust, resolve):
        with pytest.raises(ConfigError, match="plugins"):
            reads({"experiment": str(config)})
    assert not extensions._loaded


def test_a_run_goes_on_with_the_code_that_it_began_with(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = elsewhere(experiment, monkeypatch, "first", rounds=1)
    (experiment.parent / "my_method.py").write_text(FILE.replace("0.5", "0.25"))
    longer, kept = {"resume": str(config.parent), "rounds": 2}, config.read_text()
    with pytest.raises(ConfigError, match="would run code from its folder"):
        resuming.resolve(longer, hold=False)
    other = yaml.safe_load(kept)
    del other["plugins"]  # as if it were of an earlier version, which recorded no code
    config.write_text(yaml.safe_dump(other))
    with pytest.raises(ConfigError, match="a run goes on with the code that it began with"):
        resuming.resolve(longer, hold=False)
    config.write_text(kept)
    plugins_module.trust(longer)
    extensions.forget()
    going_on, past = resuming.resolve(longer, hold=False)
    assert past is not None and going_on.plugins[0].startswith(str(config.parent))


def test_a_deployment_refuses_files(experiment: Path) -> None:
    config = resolve({"experiment": str(experiment)})
    run_build.prepare(config, "inline")
    with pytest.raises(ConfigError, match="my_method"):
        run_build.prepare(config, "deployment")


@pytest.mark.parametrize("plugins", ["[nothing.py]", "nothing.py", "[3]", "[own.yaml]"])
def test_a_wrong_list_is_reported_in_a_line(plugins: str, experiment: Path) -> None:
    experiment.write_text(EXPERIMENT.replace("[my_method.py]", plugins))
    with refused(ConfigError, plugins.strip("[]")) as caught:
        resolve({"experiment": str(experiment)})
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.long
def test_it_runs_in_flowers_simulation_with_the_same_bits(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, output = run(experiment, "inline"), experiment.parent / "simulated"
    monkeypatch.delenv(plugins_module.ALLOWED)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [str(Path(sys.executable).parent / "fedshift"), "run", str(experiment), "nodes=2", "report=false"]
    command.append(f"output-dir={output}")
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (folder,) = output.iterdir()
    assert Run(folder).results["weights_sha256"] == expected.results["weights_sha256"]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("return encode({n: before[n]", "return encode({n: np.float64(1) * before[n]", "float64"),
        ("for n in mean})", "for n in list(mean)[1:]})", "encoder"),
        ("return encode({n: before[n] - self.state[n] for n in mean})", "return None", "merge NoneType"),
        ("self.params.beta * self.state[n] + before[n] - mean[n] for n in mean}", "3 for n in mean}; return self.sent",
         "self.state['encoder int"),
        ('self.memory["rounds"] =', 'self.memory["rounds"] = [1]; _ =', "self.memory['rounds'] list"),
        ("class Node(DomainClient):", "class Node(DomainClient):\n    def private(self, model): ...\n", "Node.private"),
    ],
    ids=["type", "names", "nothing", "state", "memory", "signature"],
)  # fmt: skip
def test_what_a_method_returns_or_keeps_is_held_to_its_type(old: str, new: str, named: str, experiment: Path) -> None:
    assert FILE.count(old) == 1
    (experiment.parent / "my_method.py").write_text(FILE.replace(old, new).replace("self.memory.get(", "{}.get("))
    with pytest.raises(FedShiftError) as caught:
        run(experiment, "wrong", rounds=1)
    assert all(part in str(caught.value) for part in named.split())
