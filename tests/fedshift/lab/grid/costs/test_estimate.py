"""``fedshift run --dry-run``: what is counted is what a run counts; what is measured is there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support import ROOT, InlineRun
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.grid.costs import node_steps
from fedshift.lab.grid.costs.estimate import Estimate, estimate, summary
from fedshift_app.config import registry
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_clients.training.node import NodeTools
from fedshift_datasets.base import ImageSet

QUICK = ("train.epochs=1", "allocation.share=0.1", "train.batch_size=16", "rounds=2")


def of(method: str, *more: str, count: bool = False) -> Estimate:
    flat, _ = parse_arguments(["handwritten", f"method={method}", *QUICK, *more])
    return estimate(resolve(flat), 4, 2, count=count)


def test_bytes_and_nodes_are_those_of_a_run(run_inline: InlineRun) -> None:
    result = of("i2pfl")
    short = " ".join(key for key in QUICK if not key.startswith("rounds"))
    run = run_inline("handwritten", nodes=4, method="i2pfl", rounds=2, set=short)
    assert (result.down, result.measured.up * result.playing) == (
        run.rounds[0]["bytes_down"],
        run.rounds[0]["bytes_up"],
    )


def test_seconds_follow_from_steps_by_hand() -> None:
    result = of("fedavg")
    exact = replace(result, measured=replace(result.measured, step=2.0, scored=0.5, epochs=3))
    steps = sum(-(-node.num_examples // 16) for node in result.nodes)
    assert exact.train_seconds == pytest.approx(3 * steps * 2.0 / 2)  # two at a time
    assert exact.test_images == 4 * 90
    assert exact.score_seconds == pytest.approx(2 * 360 * 0.5 / 2)
    assert exact.seconds == pytest.approx(2 * exact.train_seconds + exact.score_seconds)
    public = replace(exact, measured=replace(exact.measured, others=5))  # of each of the four nodes
    assert public.train_seconds == pytest.approx(exact.train_seconds + 4 * 5 * 2.0 / 2)
    assert result.measured.others == 0 and result.measured.memory > 50_000_000
    assert result.measured.step > 0 and result.measured.scored > 0


@pytest.mark.skipif(not node_steps.STATUS.exists() or torch.cuda.is_available(), reason="needs Linux and no GPU")
def test_memory_has_no_pages_of_mapped_files(tmp_path: Path) -> None:
    """Kept images are mapped: the system takes them back, and all processes share them."""
    megabytes = 200
    np.save(tmp_path / "x.npy", np.ones((megabytes, 1_000_000), np.uint8))
    before, files = node_steps.held_memory(), node_steps.file_pages()
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert int(mapped[:, ::4096].sum()) > 0
    assert node_steps.file_pages() - files > 0.9 * megabytes * 1e6
    assert node_steps.held_memory() - before < 0.2 * megabytes * 1e6


def test_transfer_learning_before_a_nodes_first_round_is_counted_once() -> None:
    """FedMD: 2 epochs on public images and 25 on its own in the first round, one on its own in the second."""
    result = of("fedmd", "method.public_epochs=2", "dataset.public=0.1", "rounds=4")
    epochs, others = result.measured.first or (0, 0)
    assert (epochs, result.measured.epochs, result.measured.others) == (25, 1, 0) and others > 0
    exact = replace(result, measured=replace(result.measured, step=2.0))
    steps = sum(-(-node.num_examples // 16) for node in result.nodes)
    assert exact.train_seconds == pytest.approx(steps * 2.0 / 2)
    assert exact.first_seconds == pytest.approx((24 * steps + 4 * others) * 2.0 / 2)
    assert exact.seconds == pytest.approx(4 * exact.train_seconds + exact.first_seconds + exact.score_seconds)
    half = replace(exact, playing=2)  # in two rounds each has been there
    assert half.first_seconds == pytest.approx(exact.first_seconds)
    assert " more for the nodes' first rounds" in " ".join(summary(exact).split())
    assert of("fedavg").measured.first is None and " first rounds" not in summary(of("fedavg"))


def test_samples_that_a_method_makes_are_its_steps_from_the_second_round_on() -> None:
    result = of("ggeur", "model.freeze=encoder", "method.samples=50", "method.least_images=2", "train.epochs=2")
    assert (result.measured.epochs, result.measured.others) == (0, 2 * -(-50 * 10 // 16))
    assert result.measured.first == (2, 0) and result.first_seconds < 0
    assert "first rounds" not in summary(result)


@pytest.mark.parametrize("method", ["fedicon", "fedavg-ft", "fedthe", "tent"])
def test_training_before_a_score_is_counted_once_for_each_test_set(method: str) -> None:
    """FedICON trains its classifier, FedAvg-FT and FedTHE the model; Tent on test images, which counts with these."""
    long = {"fedicon": ["method.personal_epochs=200", "rounds=8"], "fedavg-ft": ["adapt.epochs=5"], "fedthe": []}
    result = of(method, "allocation.share=0.4", *long.get(method, []))
    assert (result.measured.before > 0) == (method in long)
    assert (" before each set of them" in " ".join(summary(result).split())) == (method in long)
    exact = replace(result, measured=replace(result.measured, scored=0.5, before=0.25), side_by_side=1)
    own = sum(node.num_examples for node in result.nodes)  # each node scores its own domain once
    assert exact.score_seconds == pytest.approx(len(result.scored) * (result.test_images * 0.5 + own * 0.25))


def test_each_way_of_batchnorm_costs_its_passes() -> None:
    ways = ("model.name=cnn_bn", "evaluate.bn=[averaged,retaken,own,batch]", "evaluate.bn_images=10")
    result = of("fedavg", *ways, "federation.participation=0.5")
    exact = replace(result, measured=replace(result.measured, scored=0.5, taken=0.75), side_by_side=1)
    assert min(node.num_examples for node in result.nodes) > 10
    scoring = exact.scoring(1)
    assert (scoring.test, scoring.statistics) == (360, 4 * 10 + 2 * 10)  # own: all nodes; retaken: the two that trained
    assert exact.score_seconds == pytest.approx(2 * (4 * 360 * 0.5 + 60 * 0.75))
    assert exact.bn_share == pytest.approx((3 * 360 * 0.5 + 60 * 0.75) / exact.train_seconds)
    said = " ".join(summary(exact).split())
    assert "beyond one scoring 3 x 360 test images and 60 training images, forward only, " in said
    assert f"forward only, {100 * exact.bn_share:.2g} % of a round's training" in said
    evaluate = exact.config.evaluate.model_copy(update={"bn": ("averaged",)})
    config = exact.config.model_copy(update={"evaluate": evaluate})
    one = replace(exact, federation=replace(exact.federation, config=config))
    assert one.bn_share == 0 and "  ways " not in summary(one)
    assert result.measured.taken > 0 and of("fedavg").measured.taken == 0


def test_the_example_of_the_docs_has_these_numbers() -> None:
    """docs/guide/run.md, section BatchNorm: (3 T + 2 S) / (3 N E)."""
    flat, _ = parse_arguments(["handwritten", "model.name=cnn_bn", "evaluate.bn=[averaged,retaken,own,batch]"])
    result = estimate(resolve(flat), 4, 1)
    trained = 3 * sum(node.num_examples for node in result.nodes) * result.measured.epochs
    passed = 3 * result.scoring(1).test + result.scoring(1).statistics
    assert (passed, trained) == (3954, 21555)
    assert (
        f"{passed:.0f} / {trained}, {100 * passed / trained:.0f} %" in (ROOT / "docs" / "guide" / "run.md").read_text()
    )


CNN_BN = "model.name=cnn_bn"
ON_ALL = "evaluate.personal_on=all_domains"
HELD_OUT = "allocation.held_out=[sketch]"  # two nodes of scan, one of texture, one of street; 90 test images a domain
LOCAL_MODULES = "method.local_modules=local"


@pytest.mark.parametrize(
    ("method", "keys", "test_images"),
    [
        ("fedbn", (CNN_BN,), 4 * 90),  # each node its own domain
        ("fedbn", (CNN_BN, ON_ALL), 4 * 4 * 90),  # each node all four
        ("fedavg", (ON_ALL,), 4 * 90),  # nobody has a model of its own
        ("f2dc", (LOCAL_MODULES, "method.eval_modules=client_mean"), 4 * 4 * 90),
        ("f2dc", (LOCAL_MODULES, "method.eval_modules=none"), 4 * 90),
        ("fedavg", (HELD_OUT,), 4 * 90),  # one model, four domains
        ("fedbn", (CNN_BN, HELD_OUT), 4 * 90 + 4 * 90),  # and nobody's domain by each node
        ("fedbn", (CNN_BN, HELD_OUT, ON_ALL), 4 * 4 * 90),
        ("fedavg", ("shift.label_mix=own",), 4 * 90),  # each node's own draw
        ("fedavg", ("evaluate.test=false", "allocation.validation_fraction=0.1"), 0),
    ],
)
def test_test_images_count_as_often_as_they_are_scored(method: str, keys: tuple[str, ...], test_images: int) -> None:
    result = of(method, *keys)
    assert result.test_images == test_images
    exact = replace(result, measured=replace(result.measured, scored=0.5), side_by_side=1)
    validation = sum(node.num_validation for node in result.nodes)
    assert (validation > 0) == ("evaluate.test=false" in keys)
    assert exact.score_seconds == pytest.approx(2 * (test_images + validation) * 0.5)


@pytest.mark.parametrize(
    ("method", "keys", "test_images", "taken"),
    [
        ("fedbn", f"{CNN_BN} {HELD_OUT} {ON_ALL}", 4 * 4 * 90, 4 * 10),
        # Of one model, the first node of texture scores its domain and nobody's; the second one is not asked at all.
        ("fedavg", f"{CNN_BN} allocation.held_out=[scan]", 4 * 90, 3 * 10),
    ],
)
def test_a_run_passes_as_many_images_as_counted(
    method: str, keys: str, test_images: int, taken: int, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = "evaluate.bn=[averaged,own,batch] evaluate.bn_images=10"
    passed = {"scored": 0, "taken": 0}
    score, take = NodeTools.score, NodeTools.take_statistics

    def counted_score(self: NodeTools, images: ImageSet, predict: Any = None) -> tuple[int, float]:
        passed["scored"] += len(images)
        return score(self, images, predict)

    def counted_take(self: NodeTools, most: int) -> Any:
        moments, images = take(self, most)
        passed["taken"] += images
        return moments, images

    full = of(method, *keys.split(), *ways.split()).scoring(2)
    assert (full.test, full.statistics) == (test_images, taken)
    monkeypatch.setattr(NodeTools, "score", counted_score)
    monkeypatch.setattr(NodeTools, "take_statistics", counted_take)
    short = " ".join(key for key in QUICK if not key.startswith("rounds"))
    run_inline("handwritten", nodes=4, method=method, rounds=2, set=f"{short} {keys} {ways}")
    assert passed == {"scored": 2 * 3 * test_images, "taken": 2 * taken}


def test_rounds_without_a_classifier_are_not_scored() -> None:
    result = of("fedicon", "model.name=cnn", "method.classifier_rounds=3", "rounds=8")
    assert list(result.scored) == [6, 7, 8]


def test_a_sample_is_rounded_up_to_whole_batches() -> None:
    result = of("fedavg", "rounds=7", "evaluate.fraction=0.1")
    exact = replace(result, measured=replace(result.measured, scored=0.5), side_by_side=1)
    assert exact.scoring(1).test == 4 * 64  # a tenth of 90 are 9, of which a batch has 64
    assert exact.score_seconds == pytest.approx((2 * 4 * 64 + 5 * 360) * 0.5)


def test_half_of_the_nodes_take_half_of_the_time() -> None:
    whole, half = of("fedavg"), of("fedavg", "federation.participation=0.5")
    assert (whole.playing, half.playing) == (4, 2)
    assert replace(half, measured=whole.measured).train_seconds == pytest.approx(whole.train_seconds / 2)


@pytest.mark.long
@pytest.mark.parametrize("method", list(registry.METHODS))
def test_each_method_can_be_estimated(method: str) -> None:
    result = of(method, *registry.METHODS[method].short.split())
    assert result.seconds > 0 and result.disk.folder > result.disk.texts > 0


def test_a_dry_run_tells_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(cli.app, ["run", "handwritten", *QUICK, "method=moon", "nodes=4", "--dry-run"])
    assert ended.exit_code == 0, ended.output
    said, _, rest = ended.stdout.partition("\nnodes\n")
    assert yaml.safe_load(said)["method"] == resolve({"method": "moon"}).model_dump(mode="json")["method"]
    assert [line.split()[1] for line in rest.splitlines()[1:5]] == ["scan", "texture", "street", "sketch"]
    assert all(f"\n  {name} " in rest for name in ("time", "bytes", "memory", "disk"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["fedavg", "fedavg-ft"])
def test_a_node_is_measured_with_what_its_message_holds(method: str) -> None:
    result = of(method, "train.class_weights=balanced", "train.class_counts=federation", count=True)
    assert result.seconds > 0 and result.flops > 0


def test_a_dry_run_refuses_what_a_run_refuses() -> None:
    ended = CliRunner().invoke(cli.app, ["run", "handwritten", "method=fedvag", "--dry-run"])
    assert "did you mean fedavg" in str(ended.exception)
