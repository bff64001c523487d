"""``sweep --dry-run`` and ``tune --dry-run``: sums over a grid, each setting measured once, nothing written."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import InlineRun
from torch import Tensor, nn, zeros
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.grid.costs import grid_dry_run, grid_estimate
from fedshift.lab.grid.costs.estimate import Estimate, estimate
from fedshift.lab.grid.costs.grid_dry_run import DAY, HEAD, sweep, tune
from fedshift.lab.grid.costs.grid_estimate import Work, deciding
from fedshift.lab.grid.sweep import grid, sweeping
from fedshift.lab.grid.sweep.progress import makespan
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_clients.models import networks
from fedshift_clients.training import machine
from fedshift_core.errors import ConfigError

QUICK = ("nodes=4", "train.epochs=1", "allocation.share=0.1", "train.batch_size=16", "rounds=2")


@pytest.fixture(autouse=True)
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process only to time it."""
    monkeypatch.setattr(grid_estimate, "start_seconds", lambda: 2.5)


def unchecked(config: object, nodes: int) -> None:
    """Check no data."""


def of(*more: str) -> Estimate:
    flat, _ = parse_arguments(["handwritten", *QUICK, *more])
    return estimate(resolve(flat), 4, 1, count=True)


def forward_flops(name: str, size: int) -> int:
    """Return the FLOPs of one image's way through a network, layer by layer: two for each weight at each place."""
    model, total = networks.bare(name, 10, size), 0

    def count(layer: nn.Module, _: object, out: Tensor) -> None:
        nonlocal total
        places = out[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
        total += 2 * layer.weight.numel() * places  # type: ignore[union-attr,operator]

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    model.eval()(zeros(1, 3, size, size))
    return total


def test_flops_are_those_of_the_layers() -> None:
    result = of()
    forward = forward_flops("cnn", 32)
    assert result.counted is not None and result.counted.image == forward
    # The backward pass takes twice the forward one, but for the gradient of the images, which nobody needs.
    model = networks.bare("cnn", 10, 32)
    first = next(layer for layer in model.modules() if isinstance(layer, nn.Conv2d))
    places = (32 + 2 * int(first.padding[0]) - first.kernel_size[0] + 1) ** 2
    assert result.counted.step == 16 * (3 * forward - 2 * first.weight.numel() * places)
    steps = sum(-(-node.num_examples // 16) for node in result.nodes)
    assert result.flops == 2 * steps * result.counted.step + 2 * 360 * forward  # two rounds, both scored
    assert replace(result, counted=None).flops == 0 and estimate(result.config, 4, 1).counted is None


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.integers(1, 5))
def test_makespan_is_that_of_places_that_take_the_next_run(seconds: list[float], jobs: int) -> None:
    ends = [0.0] * jobs
    for each in seconds:  # the place that is free first, found by looking
        place = min(range(jobs), key=lambda i: ends[i])
        ends[place] += each
    assert makespan(seconds, jobs) == max(ends)
    assert max(seconds) <= makespan(seconds, jobs) + 1e-9 and makespan(seconds, 1) == pytest.approx(sum(seconds))
    assert makespan(seconds, jobs) <= sum(seconds) / jobs + max(seconds) + 1e-9


def test_runs_that_differ_in_seed_and_rates_share_a_measurement() -> None:
    def key(*keys: str) -> object:
        return deciding(resolve(parse_arguments(["handwritten", *keys])[0]))

    assert key("method=i2pfl") == key("method=i2pfl", "seed=4", "method.tau=0.2", "train.lr=0.5")
    for other in ("method.lambda1=0", "train.epochs=7", "allocation.share=0.5", "rounds=3", "model.name=cnn_bn"):
        assert key("method=i2pfl") != key("method=i2pfl", other), other


def line(text: str, name: str) -> str:
    """Return a fact of the text, unwrapped."""
    found = re.search(rf"^  {name} +(.*?)(?=^  \S|\Z|^$)", text, re.M | re.S)
    assert found is not None, text
    return " ".join(found[1].split())


def row(text: str, name: str) -> list[str]:
    return next(one for one in text.splitlines() if one.startswith(f"{name} ")).split()


def test_a_sweep_is_the_sum_of_its_runs_and_writes_nothing(tmp_path: Path) -> None:
    keys = ["handwritten", "method=fedavg,fpl", "seed=0,1,2", "jobs=2", f"output-dir={tmp_path / 'runs'}", *QUICK]
    text = sweep(keys, unchecked)
    assert text.splitlines()[0] == "6 runs" and not (tmp_path / "runs").exists()
    assert text.splitlines()[2].split() == [*HEAD]
    assert line(text, "measured") == "2 settings, a few steps of one node each"
    one = of()
    assert row(text, "fedavg")[1] == "3" and row(text, "fpl")[1] == "3"
    traffic = 2 * (one.down + one.measured.up * one.playing)
    assert row(text, "fedavg")[-2:] == f"{3 * traffic / 1e6:.3g} MB".split()
    petas = float(line(text, "GPU").split()[0])
    assert petas == pytest.approx(3 * one.flops / 1e15 + float(row(text, "fpl")[4]), rel=0.02)
    assert "2 side by side" in line(text, "time") and "2.5 s of each run is the start" in line(text, "time")
    assert "warning" not in text


def test_finished_runs_of_the_sweep_are_not_counted(tmp_path: Path, run_inline: InlineRun) -> None:
    output = tmp_path / "out"
    keys = ["handwritten", "seed=0,1", "rounds=1", "allocation.share=0.1", "nodes=4", f"output-dir={output}"]
    request = grid.read(keys)
    points, _ = grid.points(request, unchecked)
    run = run_inline("handwritten", nodes=4, seed=1, rounds=1, set="allocation.share=0.1")
    folder = sweeping.folder_of(request, points)
    shutil.copytree(run.folder, folder / run.folder.name)
    text = sweep(keys, unchecked)
    assert text.splitlines()[0] == f"2 runs, 1 of them finished in {folder}" and row(text, "fedavg")[1:3] == [
        "seed=0",
        "1",
    ]
    both = ["handwritten", "seed=1", "rounds=1", "allocation.share=0.1", "nodes=4", f"output-dir={output}"]
    alone = sweeping.folder_of(grid.read(both), grid.points(grid.read(both), unchecked)[0])
    shutil.copytree(run.folder, alone / run.folder.name)
    assert sweep(both, unchecked) == f"1 run, 1 of them finished in {alone}: nothing is left to do"
    (config,) = alone.glob("*/config.yaml")
    config.write_text(config.read_text().replace("images: {}", "images: {scan: {train: other}}"))
    assert sweep(both, unchecked).splitlines()[0] == "1 run"


def test_above_a_day_it_says_what_would_shorten_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "bfloat16", lambda: machine.AMX)
    slow = of("rounds=40", "train.precision=float32", "model.freeze=stages:1", "model.name=resnet10", "dataset.size=16")
    slow = replace(slow, measured=replace(slow.measured, step=2000.0, scored=10.0))
    monkeypatch.setattr(grid_estimate, "estimate", lambda *_, **__: slow)
    text = sweep(["handwritten", "seed=0,1", "jobs=1", *QUICK], unchecked)
    warning = text[text.index("warning: ") :]
    seconds = 2 * (2.5 + slow.prepared + slow.seconds)
    assert seconds > DAY and f"warning: about {grid_dry_run._hours(seconds)}; what would shorten it:" in warning
    # 360 test images of 10 s in each of 40 rounds; every tenth and the last five are 4 + 4.
    assert Work("fedavg", 1, slow, 0.0).spared == pytest.approx((40 - 8) * 3600.0)
    assert f"evaluate-every=10: scoring less often spares about {grid_dry_run._hours(2 * 32 * 3600.0)}" in warning
    for advice in (
        "model.precompute=on",
        "train.precision=auto: this machine has bfloat16 (AMX)",
        "--list --slurm FILE",
    ):
        assert f"- {advice}" in warning, advice


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"), (9.4, "9.4 s"), (61.0, "1 min 1 s"), (3599.6, "60 min"), (3660.0, "1 h 1 min"),
        (40 * 3600.0, "1 d 16 h"), (11 * 3600.0 + 59 * 60, "11 h"), (30 * DAY + 3600.0, "30 d"),
    ],
)  # fmt: skip
def test_durations_have_words(seconds: float, text: str) -> None:
    assert grid_dry_run._hours(seconds) == text


def test_a_search_is_its_trials_and_the_runs_to_compare(tmp_path: Path) -> None:
    keys = ["handwritten", "method=fedavg,fedprox", "budget=5", "seed=0,1", "jobs=2", *QUICK]
    text = tune([*keys, f"output-dir={tmp_path / 'runs'}"], unchecked)
    assert text.splitlines()[0] == "2 methods: at most 10 trials, then 8 runs to compare"
    assert "trials that end early take less" in text and not (tmp_path / "runs").exists()
    # A trial's weights are removed when it has ended: five have one folder with weights, and four with texts.
    trials, compared = (row(text, name)[-4:-2] for name in ("fedavg: trials", "fedavg: to"))
    assert trials[1] == compared[1] == "MB" and float(trials[0]) < 0.75 * float(compared[0])
    assert row(text, "fedavg: trials")[2] == "5" and row(text, "fedprox: to")[3] == "4"
    assert "trials that end early" not in tune([*keys, "pruning=false", "search.train.lr=off"], unchecked)


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["sweep", "handwritten", "--dry-run", "--list"], "sweep: --dry-run goes alone"),
        (["sweep", "handwritten", "--dry-run", "rounds=-2"], "rounds"),
        (["tune", "handwritten", "--dry-run"], "budget is missing"),
    ],
)
def test_what_is_wrong_is_refused(arguments: Sequence[str], refused: str) -> None:
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == 1 and isinstance(result.exception, ConfigError) and refused in str(result.exception)
