"""``fedshift run --dry-run``: what is counted is what a run counts; what is measured is there."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support import InlineRun
from typer.testing import CliRunner

from fedshift_app import cli
from fedshift_app.config import registry
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_app.costs.estimate import Estimate, estimate

QUICK = ("train.epochs=1", "allocation.share=0.1", "train.batch_size=16", "rounds=2")


def of(method: str, *more: str) -> Estimate:
    flat, _ = parse_arguments(["handwritten", f"method={method}", *QUICK, *more])
    return estimate(resolve(flat), 4, 2)


def test_bytes_and_nodes_are_those_of_a_run(run_inline: InlineRun) -> None:
    found = of("i2pfl")
    short = " ".join(key for key in QUICK if not key.startswith("rounds"))
    run = run_inline("handwritten", nodes=4, method="i2pfl", rounds=2, set=short)
    assert (found.down, found.measured.up * found.playing) == (run.rounds[0]["bytes_down"], run.rounds[0]["bytes_up"])


def test_seconds_follow_from_steps_by_hand() -> None:
    found = of("fedavg")
    exact = replace(found, measured=replace(found.measured, step=2.0, scored=0.5, epochs=3))
    steps = sum(-(-node.num_examples // 16) for node in found.nodes)
    assert exact.train_seconds == pytest.approx(3 * steps * 2.0 / 2)  # two at a time
    assert exact.test_images == 4 * 90
    assert exact.score_seconds == pytest.approx(2 * 360 * 0.5 / 2)
    assert exact.seconds == pytest.approx(2 * exact.train_seconds + exact.score_seconds)
    public = replace(exact, measured=replace(exact.measured, others=5))  # of each of the four nodes
    assert public.train_seconds == pytest.approx(exact.train_seconds + 4 * 5 * 2.0 / 2)
    assert found.measured.others == 0 and found.measured.memory > 50_000_000
    assert found.measured.step > 0 and found.measured.scored > 0


def test_each_way_of_batchnorm_costs_its_passes() -> None:
    ways = ("model.name=cnn_bn", "evaluate.bn=[averaged,retaken,own,batch]", "evaluate.bn_images=10")
    found = of("fedavg", *ways, "federation.participation=0.5")
    exact = replace(found, measured=replace(found.measured, scored=0.5), side_by_side=1)
    assert min(node.num_examples for node in found.nodes) > 10
    assert exact.statistics_images == 4 * 10 + 2 * 10  # own: all nodes; retaken: the two that trained
    assert exact.score_seconds == pytest.approx(2 * (4 * 360 + 60) * 0.5)


def test_half_of_the_nodes_take_half_of_the_time() -> None:
    whole, half = of("fedavg"), of("fedavg", "federation.participation=0.5")
    assert (whole.playing, half.playing) == (4, 2)
    assert replace(half, measured=whole.measured).train_seconds == pytest.approx(whole.train_seconds / 2)


@pytest.mark.long
@pytest.mark.parametrize("method", list(registry.METHODS))
def test_each_method_can_be_estimated(method: str) -> None:
    found = of(method, *registry.METHODS[method].short.split())
    assert found.seconds > 0 and found.folder > 0


def test_a_dry_run_tells_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(cli.app, ["run", "handwritten", *QUICK, "method=moon", "nodes=4", "--dry-run"])
    assert ended.exit_code == 0, ended.output
    said, _, rest = ended.stdout.partition("\nnodes\n")
    assert yaml.safe_load(said)["method"] == resolve({"method": "moon"}).model_dump(mode="json")["method"]
    assert [line.split()[1] for line in rest.splitlines()[1:5]] == ["scan", "texture", "street", "sketch"]
    assert all(f"\n  {name} " in rest for name in ("time", "bytes", "memory", "disk"))
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_what_a_run_refuses() -> None:
    ended = CliRunner().invoke(cli.app, ["run", "handwritten", "method=fedvag", "--dry-run"])
    assert "did you mean fedavg" in str(ended.exception)
