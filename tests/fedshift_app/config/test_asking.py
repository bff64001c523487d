"""What a method asks of an experiment that only its user has: its runs tell it, and compare."""

from pathlib import Path

import pytest
import yaml
from support import ROOT, InlineRun

from fedshift.compare import compare
from fedshift_app.config.requested import requested_by_method
from fedshift_app.config.resolving import resolve


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


def test_runs_of_ones_own_experiment_compare(mine: Path, run_inline: InlineRun) -> None:
    quick = {"rounds": 1, "set": "train.epochs=1 allocation.share=0.1", "experiment": str(mine)}
    runs = [run_inline(method=method, **quick) for method in ("fedavg", "fedbn", "fedprox")]
    table = compare([run.folder for run in runs]).numbers
    assert [(row.label, row.group) for row in table.rows] == [("fedavg", ""), ("fedprox", ""), ("fedbn", "")]
    assert "fedprox, as the method or its experiment asks: train.lr=0.02" in table.notes
