"""A package outside our folders, in an environment of its own: a method, a data set, a network, a feature."""

import json
import os
import re
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from support import ROOT, Command, Ended, InlineRun, Run, own_experiment

from fedshift.run.launch import runner

PACKAGE = ROOT / "tests" / "example_plugin"
#: Runs several commands one after another in one process, which imports torch once.
COMMANDS = """
import contextlib, io, json, sys
from fedshift import cli
ended = []
for words in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv[1:] = words
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as caught:
            code = caught.code or 0
    ended.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(ended))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the package, on top of this one's packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=False)
    (inner,) = (folder / "venv").glob("lib/python*/site-packages")
    (inner / "outer.pth").write_text("\n".join(site.getsitepackages()))
    source = shutil.copytree(PACKAGE, folder / "source")  # building leaves files behind
    made = folder / "venv" / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(made), "install", "--quiet", "--no-deps", "--no-index",
         "--no-build-isolation", "--disable-pip-version-check", str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


def ask(python: Path, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([str(python), *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def each_of(python: Path, *commands: list[str]) -> list[Ended]:
    """Return exit code, output and errors of commands that one process runs."""
    ended = ask(python, "-c", COMMANDS, json.dumps(commands))
    assert ended.returncode == 0, ended.stderr
    return [Ended(*one) for one in json.loads(ended.stdout)]


SENSELESS = {
    "features=[weight-norm]": "features: unknown feature 'weight-norm'; there are profile, ",
    "features.weight-norms.starts=x": "unknown key features.weight-norms.starts; there are begins",
    "features.weight-norms.begins=3": "features.weight-norms.begins: Input should be a valid string, found 3",
    "privacy.name=local-dp model.bn=local": (
        "privacy.name=local-dp does not go with features=weight-norms, which sends without noise the length of the "
        "weights that the node has trained"
    ),
}
LISTS = {"methods": "equal-domains", "datasets": "stripes", "models": "tiny"}


@dataclass(frozen=True)
class Asked:
    """How commands end where the package is."""

    lists: list[Ended]
    senseless: list[Ended]
    run: Ended
    runs: Path


@pytest.fixture(scope="module")
def with_it(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """Run the lists, the senseless runs and a whole one in one process, for its imports."""
    runs, none = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("none")
    run = ["run", str(PACKAGE / "experiment.yaml"), "engine=inline"]
    senseless = ([*run, "method=fedavg", f"output-dir={none}", *given.split()] for given in SENSELESS)
    whole = [*run, "nodes=2", "rounds=2", "report=false", f"output-dir={runs}"]
    ended = each_of(python, *([kind] for kind in LISTS), *senseless, whole)
    assert not list(none.iterdir())
    return Asked(ended[: len(LISTS)], ended[len(LISTS) : -1], ended[-1], runs)


def test_lists_name_the_package(with_it: Asked) -> None:
    for name, (code, out, err) in zip(LISTS.values(), with_it.lists, strict=True):
        assert (code, err) == (0, "")
        (line,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
        assert line.endswith("[fedshift-example 1.0]")


def test_without_the_package_nothing_of_it_is_there(fedshift: Command) -> None:
    lists = [fedshift(kind) for kind in LISTS]
    assert [ended.code for ended in lists] == [0, 0, 0]
    assert not any(line.endswith("]") for ended in lists for line in ended.out.splitlines())
    code, _, err = fedshift("run", PACKAGE / "experiment.yaml")
    assert code == 1
    assert err.startswith("error: unknown method 'equal-domains'; there are fedavg")


@pytest.mark.long
def test_all_in_one_run_pass_the_contract(python: Path) -> None:
    """The contract of all methods holds for the package's method, on its data set and its network."""
    command = [
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/fedshift_app/test_contract.py",
    ]  # fmt: skip
    env = {"FEDSHIFT_CONTRACT": "method=equal-domains dataset=stripes model.name=tiny"}
    ran = subprocess.run(
        [str(python), *command], cwd=ROOT, env=os.environ | env | {"OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-5000:]
    last = ran.stdout.strip().splitlines()[-1]
    assert " passed" in last
    assert int(last.split(" passed")[0].split()[-1]) >= 9, last


def test_it_runs_from_an_experiment_file(with_it: Asked) -> None:
    code, out, err = with_it.run
    assert code == 0, out + err
    assert "equal-domains on stripes, tiny" in out
    (config,) = with_it.runs.glob("*/config.yaml")
    assert re.search(r"fedshift-example: 1\.0, [0-9a-f]{12}\n", config.read_text())
    assert "name: weight-norms" in config.read_text() and "begins: encoder." in config.read_text()
    values = [event["message"] for event in Run(config.parent).events("weight_norms")]
    assert [line.partition(" of ")[0] for line in values] == ["round 1: weights", "round 2: weights"]
    kept = load_file(config.parent / "checkpoint" / "moments-00002.safetensors")["weight-norms/medians"]
    assert [f"{median:.3f}" for median in kept] == [line.rpartition(" ")[2] for line in values]
    assert (kept > 1).all() and (kept < 100).all()


def test_what_makes_no_sense_is_reported_before_anything_starts(with_it: Asked) -> None:
    for (code, _, err), error in zip(with_it.senseless, SENSELESS.values(), strict=True):
        assert code == 1
        assert err.startswith(f"error: {error}") and len(err.splitlines()) == 1, err
        assert ("did you mean weight-norms?" in err) is ("unknown feature" in error)


# --- a feature of a user's own file ------------------------------------------------------------------

FILE = '''
"""The server says a word, and each node how long it is."""

import numpy as np
from pydantic import Field

from fedshift_clients.features import NodeFeature
from fedshift_core.features import Feature, Key
from fedshift_core.params import Params
from fedshift_strategies.features.base import ServerFeature
from fedshift_strategies.federation.checks import Range
from fedshift_strategies.federation.evaluation import Asked


class EchoParams(Params):
    word: str = Field("echo", description="What is said.")


class Echo(ServerFeature):
    prefixes = ("echo/",)

    def on_round(self, training):
        yield Asked(lambda node: {"word": self.params.word}, bounds=lambda node: {"letters": Range(0, 99)})
        letters = [update.metrics["letters"] for update in training.updates]
        self.state = {"echo/letters": np.array([*self.state.get("echo/letters", []), sum(letters)])}


class EchoOnNode(NodeFeature):
    def refuse(self, request):
        asks = request.given.get("word") == self.params.word
        return request.but("word", "" if asks else f"this run has features.echo.word={self.params.word}")

    def on_train(self, call, next):
        reply = next(call)
        reply.metrics["letters"] = len(call.options["word"])
        return reply


FEATURE = Feature(
    "echo", "A word and its length", "features", Echo, EchoOnNode, EchoParams,
    train=(Key("word", "text", "any word"),), train_reply=(Key("letters", "int", "how long it is"),),
)
'''
EXPERIMENT = """
plugins: [echo.py]
dataset: {name: handwritten, domains: [scan, sketch]}
model: {name: cnn}
train: {epochs: 1, batch_size: 12, lr: 0.02}
allocation: {counts: any, share: 0.06}
rounds: 1
"""


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the experiment and its file into a folder of their own; other tests know nothing of the feature."""
    with own_experiment(tmp_path, monkeypatch, "echo.py", FILE, EXPERIMENT) as file:
        yield file


def test_a_feature_of_a_file_asks_and_is_answered_and_keeps_its_state_over_a_resume(
    experiment: Path, run_inline: InlineRun
) -> None:
    plain = run_inline(str(experiment))
    first = run_inline(str(experiment), set="features=[echo] features.echo.word=hello")
    assert first.results["weights_sha256"] == plain.results["weights_sha256"]
    assert first.rounds[0]["losses"] == plain.rounds[0]["losses"]  # its numbers are no losses
    runner.run_inline({"resume": str(first.folder), "rounds": 2, "output-dir": str(first.folder.parent)}, 4)
    kept = load_file(first.folder / "checkpoint" / "moments-00002.safetensors")
    assert {name: array.tolist() for name, array in kept.items()} == {"echo/letters": [4 * 5, 4 * 5]}
    config = (first.folder / "config.yaml").read_text()
    assert "plugin echo.py" in config and "word: hello" in config
