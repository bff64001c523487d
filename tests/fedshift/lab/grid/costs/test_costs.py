"""``fedshift costs``: what it prints is counted on real rounds, and is what a run writes down of them."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from refusals import refused
from support import InlineRun
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.grid import commands
from fedshift.lab.grid.costs import command, dry_run, grid_dry_run, measuring, paper_costs
from fedshift.lab.grid.costs.dry_run import Measured, measure
from fedshift.lab.grid.costs.measuring import Costs
from fedshift.lab.grid.costs.table import Table
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError, FedShiftError

QUICK = ("train.epochs=1", "allocation.share=0.1", "train.batch_size=16", "dataset.domains=[scan,texture]")
#: The two-layer CNN of 32 pixels and 10 classes, by hand: multiply-adds of an image forwards, by layer.
FORWARDS = {"conv1": 28 * 28 * 32 * 3 * 25, "conv2": 10 * 10 * 64 * 32 * 25, "fc": 1600 * 64, "head": 64 * 10}
ENCODER = 3 * 25 * 32 + 32 + 32 * 25 * 64 + 64 + 1600 * 64 + 64
HEAD = 64 * 10 + 10


@cache
def costs_of(method: str, *more: str, rounds: int = 2, nodes: int = 2) -> list[Costs]:
    flat, _ = parse_arguments(["handwritten", f"method={method}", f"rounds={rounds}", *QUICK, *more])
    return measuring.measure(method, resolve(flat), nodes)


def step_by_hand(batch: int) -> int:
    """Return the FLOPs of a step: every layer forwards, its weights' gradient, and its input's but for the first's."""
    forwards = sum(FORWARDS.values())
    return 2 * batch * (2 * forwards + forwards - FORWARDS["conv1"])


def test_the_phases_of_a_local_round_are_distinguished() -> None:
    (result,) = costs_of("fedseproto", "train.epochs=3", "method.phase1_epochs=1")
    first, second = result.steps
    assert (first.epochs, second.epochs) == (1, 2)
    assert first.flops == step_by_hand(16) < second.flops
    assert result.step_flops == (first.flops + 2 * second.flops) / 3


def test_a_method_that_makes_its_samples_has_more_steps_and_one_of_them_is_counted() -> None:
    """GGEUR, from the second round on: 2 x 10 rows in each epoch, of the head alone."""
    keys = ("model.freeze=encoder", "method.samples=4", "method.least_images=2", "train.epochs=3")
    (result,) = costs_of("ggeur", *keys)
    ((epochs, flops),) = [(step.epochs, step.flops) for step in result.steps]
    assert (epochs, flops) == (3, 2 * 2 * 16 * FORWARDS["head"])  # forwards, and the gradient of the weights


def test_a_head_that_is_solved_has_no_step() -> None:
    (result,) = costs_of("fed3r", "model.freeze=encoder", rounds=1)
    assert (result.steps, result.step_flops, result.rounds) == ((), 0.0, [1])


def test_modules_cost_something_and_prototypes_that_are_there_are_counted() -> None:
    (fedavg,), (i2pfl,) = costs_of("fedavg"), costs_of("i2pfl")
    (f2dc,) = costs_of("f2dc", "method.local_modules=local", "method.eval_modules=none")
    assert f2dc.step_flops > fedavg.step_flops
    assert f2dc.parameters.sent == ENCODER + HEAD < f2dc.parameters.all
    # GPCL, from the second round on: 16 features against 10 prototypes of 64, and the gradient of the features.
    assert i2pfl.step_flops - fedavg.step_flops == 2 * 2 * 16 * 10 * 64


@pytest.mark.parametrize(
    ("method", "own", "sent"),
    [
        ("fedavg", 0, ENCODER + HEAD),
        ("fedproto", 0, 0),
        ("fedbn", 2 * 96, ENCODER + HEAD),  # scale and shift of 32 and of 64 channels stay
    ],
)
def test_parameters_by_hand(method: str, own: int, sent: int) -> None:
    (result,) = costs_of(method)
    assert (result.parameters.all, result.parameters.sent) == (ENCODER + HEAD + own, sent)


@pytest.mark.parametrize("method", ["i2pfl", "fedproto"])
def test_the_bytes_are_those_that_a_run_writes_down(method: str, run_inline: InlineRun) -> None:
    line = run_inline(method=method, rounds=2, nodes=4, set=" ".join(QUICK)).rounds[1]
    (result,) = costs_of(method, nodes=4)
    assert (result.rounds, result.bytes_up, result.bytes_down) == ([2], line["bytes_up"], line["bytes_down"])
    assert len(result.times) == 4 and min(result.times) > 0
    assert [measuring.played(rounds) for rounds in (1, 3, 20)] == [[1], [1, 2, 3], [1, 2, 3, 20]]


# --- the command ------------------------------------------------------------------------------------------


def test_a_table_with_units_and_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    requests = ["fedavg", "i2pfl", "handwritten", "nodes=2", "rounds=2", "method.use_apa=true,false", *QUICK]
    result = command.run(requests)
    assert [costs.label for costs in result.costs] == [
        "fedavg", "i2pfl method.use_apa=true", "i2pfl method.use_apa=false",
    ]  # fmt: skip
    text = result.text()
    assert f"{step_by_hand(16) / 1e9:.3f}" in text and f"measured on {result.machine}" in " ".join(text.split())
    assert "method.use_apa is left out for fedavg" in text and result.markdown().count("\n| ") == 5
    assert list(tmp_path.iterdir()) == []  # nothing is written
    monkeypatch.setattr(command, "run", lambda arguments, paper: result)
    commands.costs(requests, as_json=True)
    output = json.loads(capsys.readouterr().out)
    assert output["costs"][0]["step_flops"] == step_by_hand(16)
    assert output["costs"][0]["parameters"] == {"all": ENCODER + HEAD, "sent": ENCODER + HEAD}
    assert output["machine"] == result.machine
    with refused(ConfigError, "--json or --markdown"):
        commands.costs(requests, markdown=True, as_json=True)


def test_what_is_said_on_the_way_is_no_part_of_the_object_and_a_method_that_fails_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with refused(FedShiftError, "fedprox"):
        commands.costs(["fedprox", "fedavg", "nodes=2", "rounds=2", "method.mu=1e30", *QUICK], as_json=True)
    out, err = capsys.readouterr()
    content = json.loads(out)
    assert [one["label"] for one in content["costs"]] == ["fedavg"]
    assert any(note.startswith("fedprox: left out: round 1: ") for note in content["notes"])
    assert "[1/2] fedprox\n" in err and "[2/2] fedavg\n" in err
    with refused(FedShiftError, "fedprox: round 1: "):
        command.run(["fedprox", "nodes=2", "rounds=2", "method.mu=1e30", *QUICK])


def cost(label: str, settings: dict[str, object], sent: int, up: int, flops: int, seconds: float) -> Costs:
    """Return what a method would have come to, in one kind of round with one phase."""
    settings = {"method.name": label, "modules": "none", "adapt.name": "none", **settings}
    return Costs(label, settings, "", 10, measuring.Parameters(sent, sent), "resnet10", 64,
                 (measuring.Step(10, flops),), up, up, [2], [seconds])  # fmt: skip


F2DC = {"method.aggregation": "daa", "method.use_dfd_loss": True, "method.use_dfc_loss": True}


def table(costs: list[Costs], paper: str = "f2dc.table4") -> Table:
    return Table(resolve({"experiment": "f2dc-pacs"}), 10, costs, "a machine", [], paper_costs.table_of(paper))


def test_a_papers_costs_stand_next_to_ours_in_its_units_with_multiples_of_fedavgs() -> None:
    """Ten nodes that send 5 million parameters: 5.00e7; 200 MB; 3e11 FLOPs, 30e10. Printed: 16.46 / 16.31 = 1.01."""
    costs = [
        cost("fedavg", {}, 5_000_000, 200_000_000, 300_000_000_000, 8.0),
        cost("moon", {}, 5_000_000, 200_000_000, 300_000_000_000, 8.0),  # which the table does not print
        cost("f2dc", F2DC, 5_000_000, 200_000_000, 450_000_000_000, 10.0),
        cost("f2dc", F2DC | {"method.use_dfc_loss": False}, 5_000_000, 200_000_000, 400_000_000_000, 9.0),
    ]
    result = table(costs)
    rows = [line[1:-1].replace(" ", "").split("|") for line in result.markdown().splitlines() if "(1.00) |" in line]
    assert rows == [
        ["fedavg", "5.00(1.00)", "200.00(1.00)", "30.00(1.00)", "8.00(1.00)"],
        ["paper:FedAvg", "5.43(1.00)", "193.72(1.00)", "16.31(1.00)", "176.94(1.00)"],
        ["f2dc", "5.00(1.00)", "200.00(1.00)", "45.00(1.50)", "10.00(1.25)"],
        ["paper:F2DC", "5.43(1.00)", "193.72(1.00)", "16.46(1.01)", "180.67(1.02)"],
    ]
    content = json.loads(result.json())
    assert content["paper"] == "f2dc.table4" and [pair["label"] for pair in content["beside"]] == ["FedAvg", "F2DC"]
    assert content["beside"][1]["times_printed"]["FLOPs x1e10"] == pytest.approx(16.46 / 16.31)


@pytest.mark.parametrize(
    ("arguments", "paper", "named"),
    [
        ("", "", "costs: "), ("handwritten", "", "costs: "), ("fedavgg", "", "'fedavgg'"),
        ("fedavg handwritten digits-small", "", "'handwritten' and 'digits-small'"),
        ("fedavg engine=inline", "", "'engine'"), ("fedavg output-dir=x", "", "'output-dir'"),
        ("fedavg method=f2dc", "", "'method'"), ("fedavg fedavg", "", "'fedavg' comes twice"),
        ("fedavg method.tau=1", "", "method.tau"), ("fedavg rounds=0", "", "rounds=0"),
        ("fedavg digits-small", "", "data-dir"), ("fedicon rounds=2", "", "method.classifier_rounds=5"),
        ("fedavg nowhere", "f2dc.table1b", "f2dc.table4"), ("fedavg", "f2dc.table44", "'f2dc.table44'"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments: str, paper: str, named: str) -> None:
    """Before anything is measured."""
    with refused(FedShiftError, named):
        command.run(arguments.split(), paper)


# --- dry runs -----------------------------------------------------------------------------------------------


SHORT = ("train.epochs=1", "allocation.share=0.1", "train.batch_size=16", "rounds=2")


def of(method: str, *more: str) -> Measured:
    flat, _ = parse_arguments(["handwritten", f"method={method}", *SHORT, *more])
    return measure(resolve(flat), 4)


@pytest.mark.parametrize("method", ["i2pfl", "fedbn", pytest.param("fedmd", marks=pytest.mark.long)])
def test_bytes_and_nodes_are_those_of_a_run(method: str, run_inline: InlineRun) -> None:
    result = of(method)
    run = run_inline(method=method, rounds=1, set=" ".join(SHORT[:-1]))
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
    ended = CliRunner().invoke(cli.app, ["run", "handwritten", *SHORT, "method=moon", "nodes=4", "--dry-run"])
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
    keys = ["handwritten", "method=fedavg,fpl", "seed=0,1,2", "jobs=2", f"output-dir={tmp_path / 'runs'}", *SHORT]
    text = grid_dry_run.sweep([*keys, "nodes=4"])
    assert text.splitlines()[0] == "6 runs" and not (tmp_path / "runs").exists()
    assert text.splitlines()[2].split() == [*grid_dry_run.HEAD]
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
    keys = ["handwritten", "method=fedavg,fedprox", "budget=5", "seed=0,1", "jobs=2", "nodes=4", *SHORT]
    text = grid_dry_run.tune([*keys, f"output-dir={tmp_path / 'runs'}"])
    assert text.splitlines()[0] == "2 methods: at most 10 trials, then 8 runs to compare"
    assert not (tmp_path / "runs").exists()
    # A trial's weights are removed when it has ended: five have one folder with weights, and four with texts.
    trials, compared = (row(text, name)[-4:-2] for name in ("fedavg: trials", "fedavg: to"))
    assert trials[1] == compared[1] == "MB" and float(trials[0]) < 0.75 * float(compared[0])
    assert row(text, "fedavg: trials")[2] == "5" and row(text, "fedprox: to")[3] == "4"
