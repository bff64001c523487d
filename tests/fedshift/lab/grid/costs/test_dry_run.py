"""``--dry-run``: the first messages of a run are timed and multiplied; nothing is written."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from refusals import refused
from support import InlineRun
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.grid.costs import dry_run
from fedshift.lab.grid.costs.dry_run import Measured, measure
from fedshift.lab.grid.costs.grid_dry_run import HEAD, sweep, tune
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError

QUICK = ("train.epochs=1", "allocation.share=0.1", "train.batch_size=16", "rounds=2")


def of(method: str, *more: str) -> Measured:
    flat, _ = parse_arguments(["handwritten", f"method={method}", *QUICK, *more])
    return measure(resolve(flat), 4)


@pytest.mark.parametrize("method", ["i2pfl", "fedbn", "fedmd"])
def test_bytes_and_nodes_are_those_of_a_run(method: str, run_inline: InlineRun) -> None:
    result = of(method)
    run = run_inline(method=method, rounds=2, set=" ".join(QUICK[:-1]))
    assert (result.down, result.up) == (run.rounds[0]["bytes_down"], run.rounds[0]["bytes_up"])
    assert result.traffic == 2 * (result.down + result.up)
    assert len(result.nodes) == len(run.results["nodes"]) == result.playing


def test_seconds_follow_from_messages_by_hand() -> None:
    result = of("fedavg", "rounds=10", "evaluate.every=5")
    assert len(result.local) == 2 and min(*result.local, result.score, result.prepared) > 0
    assert result.memory > 50_000_000 and result.disk.folder > result.disk.texts > 0
    exact = replace(result, prepared=3.0, local=(5.0, 2.0), score=0.5)
    assert (exact.playing, exact.asked, exact.scorings) == (4, 4, 6)  # after round 5 and the last five
    assert exact.seconds(1) == pytest.approx(3 + 4 * (5 + 9 * 2.0) + 6 * 4 * 0.5)
    assert exact.seconds(2) == pytest.approx(3 + (exact.seconds(1) - 3) / 2)
    assert exact.seconds(99) == exact.seconds(4)  # no more than there are nodes
    assert replace(exact, local=()).seconds(1) == 3 + 6 * 4 * 0.5


@pytest.mark.parametrize(
    ("method", "keys", "scorings"),
    [
        ("fedavg", "rounds=0", 1),
        ("fedicon", "model.name=cnn method.classifier_rounds=3 rounds=8", 3),  # before, without a classifier
        ("fedavg", "rounds=7 evaluate.fraction=0.1", 2 * 0.1 + 5),
        ("fedavg", "federation.participation=0.5 evaluate.bn=[averaged,own] model.name=cnn_bn", 2),
        ("fedavg", "evaluate.test=false allocation.validation_fraction=0.1", 2),
        ("fedrep", "evaluate.untrained=leave_out", 2),  # nobody has trained here
    ],
)
def test_what_is_scored_counts_as_often_as_it_is(method: str, keys: str, scorings: float) -> None:
    result = of(method, *keys.split())
    assert result.scorings == pytest.approx(scorings) and result.asked == 4 and result.score > 0
    assert len(result.local) == min(2, result.config.rounds)
    assert result.playing == (2 if "federation.participation=0.5" in keys else 4)


def test_a_dry_run_tells_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(cli.app, ["run", "handwritten", *QUICK, "method=moon", "nodes=4", "--dry-run"])
    assert ended.exit_code == 0, ended.output
    said, _, rest = ended.stdout.partition("\nnodes\n")
    assert yaml.safe_load(said)["method"] == resolve({"method": "moon"}).model_dump(mode="json")["method"]
    assert [line.split()[1] for line in rest.splitlines()[1:5]] == ["scan", "texture", "street", "sketch"]
    assert all(f"\n  {name} " in rest for name in ("time", "measured", "bytes", "memory", "disk", "machine"))
    assert "secure sums" not in rest and list(tmp_path.iterdir()) == []
    assert "each node makes 4 masks" in " ".join(dry_run.text(of("fedavg", "federation.secure_sums=on"), 1).split())


# --- grids ------------------------------------------------------------------------------------------------


def line(text: str, name: str) -> str:
    """Return a fact of the text, unwrapped."""
    found = re.search(rf"^  {name} +(.*?)(?=^  \S|\Z|^$)", text, re.M | re.S)
    assert found is not None, text
    return " ".join(found[1].split())


def row(text: str, name: str) -> list[str]:
    return next(one for one in text.splitlines() if one.startswith(f"{name} ")).split()


def test_a_sweep_is_the_sum_of_its_runs_and_writes_nothing(tmp_path: Path) -> None:
    keys = ["handwritten", "method=fedavg,fpl", "seed=0,1,2", "jobs=2", f"output-dir={tmp_path / 'runs'}", *QUICK]
    text = sweep([*keys, "nodes=4"])
    assert text.splitlines()[0] == "6 runs" and not (tmp_path / "runs").exists()
    assert text.splitlines()[2].split() == [*HEAD]
    assert line(text, "measured").startswith("2 settings, ") and "2 at a time" in line(text, "time")
    assert row(text, "fedavg")[1] == "3" and row(text, "fpl")[1] == "3"
    assert row(text, "fedavg")[-2:] == f"{3 * of('fedavg').traffic / 1e6:.3g} MB".split()
    assert "warning" not in text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("run handwritten method=fedvag --dry-run", "fedavg"), ("sweep handwritten --dry-run --list", "--dry-run"),
        ("sweep handwritten --dry-run rounds=-2", "rounds"), ("tune handwritten --dry-run", "budget"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(arguments: str, named: str) -> None:
    with refused(ConfigError, named):
        CliRunner().invoke(cli.app, arguments.split(), catch_exceptions=False)


def test_a_search_is_its_trials_and_the_runs_to_compare(tmp_path: Path) -> None:
    keys = ["handwritten", "method=fedavg,fedprox", "budget=5", "seed=0,1", "jobs=2", "nodes=4", *QUICK]
    text = tune([*keys, f"output-dir={tmp_path / 'runs'}"])
    assert text.splitlines()[0] == "2 methods: at most 10 trials, then 8 runs to compare"
    assert not (tmp_path / "runs").exists()
    # A trial's weights are removed when it has ended: five have one folder with weights, and four with texts.
    trials, compared = (row(text, name)[-4:-2] for name in ("fedavg: trials", "fedavg: to"))
    assert trials[1] == compared[1] == "MB" and float(trials[0]) < 0.75 * float(compared[0])
    assert row(text, "fedavg: trials")[2] == "5" and row(text, "fedprox: to")[3] == "4"
