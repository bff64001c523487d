"""Keys that are set to nothing, and runs named as they were asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from refusals import refused
from support import ROOT

from fedshift.data import init as init_files
from fedshift.data import prepare
from fedshift.lab.grid.rescore import command as rescoring
from fedshift.lab.grid.sweep import grid
from fedshift.run.launch import watching
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.requested import requested_by_method
from fedshift_app.config.resolving import FLAT_KEYS, resolve
from fedshift_core.errors import ConfigError

# --- A key with an empty value, as a shell's unset variable leaves it, is refused ---

LAUNCH = ("engine", "nodes", "workers", "actors", "cpus-per-client", "gpus-per-client", "report")


def test_of_a_run() -> None:
    for key in (*FLAT_KEYS, *LAUNCH):
        for value in ("", " "):
            with refused(ConfigError, f"{key}: "):
                parse_arguments(["handwritten", f"{key}={value}"])
    with refused(ConfigError, "experiment: "):
        parse_arguments([""])


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: grid.points(grid.read(["handwritten", "data-dir="])), "data-dir"),
        (lambda: grid.points(grid.read(["handwritten", "method="])), "method"),
        (lambda: prepare.prepare("pacs", ["data-dir="], as_json=False), "data-dir"),
        (lambda: init_files.init("mine", ["data-dir="]), "data-dir"),
        (lambda: rescoring.rescore(["output-dir=", "runs"]), "output-dir"),
        (lambda: watching.show(["output-dir="], as_json=False, watch=False, site=""), "output-dir"),
    ],
)
def test_of_other_commands(call: Callable[[], object], key: str, here: Path) -> None:
    with refused(ConfigError, key):
        call()
    assert not list(here.iterdir())


# --- What a method asks of an experiment that only its user has: its runs tell it, and compare ---


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return a copy of ``handwritten`` under another name, in which FedProx asks for something too."""
    content = yaml.safe_load((ROOT / "conf" / "experiments" / "handwritten.yaml").read_text())
    content["methods"]["fedprox"] = {"train": {"lr": 0.02}}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def test_it_is_what_the_experiment_and_the_method_say(mine: Path) -> None:
    def asked(**given: str) -> dict[str, tuple[object, object]]:
        return requested_by_method(given, resolve(given))

    assert asked(experiment=str(mine), method="fedprox") == {"train.lr": (0.02, 0.01)}
    assert asked(experiment=str(mine), method="fedavg") == {}
    bn = asked(experiment=str(mine), method="fedbn")
    assert (bn["model.bn"], bn["model.name"]) == (("local", "average"), ("cnn_bn", "cnn"))
    # By hand is no asking; of an experiment of ours anybody can find out.
    assert asked(experiment=str(mine), method="fedprox", set="train.lr=0.5") == {"train.lr": (0.02, 0.01)}
    assert asked(experiment="handwritten", method="fedbn") == {}
