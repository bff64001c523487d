"""One node of five lies within the bounds of single numbers: what it can do to the model, and what holds it back."""

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from refusals import refused
from support import InlineRun, Killed, ListeningGrid, Run
from traffic import changing
from words import config as config_of

from fedshift.run.launch import runner
from fedshift_app import server_app
from fedshift_app.run import build as run_build
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.wire.records import decode, encode

SHORT = "train.epochs=2 allocation.share=0.1 train.lr=0.05 dataset.domains=[scan] evaluate.every=2"
LIAR, HONEST = 1, [0, 2, 3, 4]
RULES = ("clip", "trimmed_mean", "median", "krum")
UNBOUNDED = "federation.max_update=1e12"  # so that nothing but the rule holds the node back
Lie = Callable[[Arrays, Arrays], Arrays]  # of what was sent and what honest training made of it


def everywhere(sent: Arrays, trained: Arrays) -> Arrays:
    """Say 9e5, which is below max_value, of all real numbers."""
    return {name: np.full_like(array, 9e5) for name, array in trained.items() if array.dtype.kind == "f"}


def flipped(sent: Arrays, trained: Arrays) -> Arrays:
    """Go 50 times as far, the other way: a few times the norm of the weights, and far from what the others do."""
    return {name: sent[name] - 50 * (array - sent[name]) for name, array in trained.items()}


def lying(lie: Lie) -> type[ListeningGrid]:
    """Return a grid in which one node lies about its weights."""

    def change(message: Message, reply: Message) -> Message:
        sent, values = (decode(of.content.array_records["arrays"]) for of in (message, reply))
        reply.content["arrays"] = encode(values | lie(sent, values))
        return reply

    return changing(change, "train", [LIAR])


@functools.cache
def initial() -> Arrays:
    """Return the weights before the first round."""
    return decode(run_build.prepare(config_of(SHORT), "inline")[0])


def apart(one: Arrays, other: Arrays) -> float:
    assert one.keys() == other.keys()
    return float(np.sqrt(sum(np.square(one[name].astype(np.float64) - other[name]).sum() for name in one)))


@pytest.fixture(scope="session")
def honest(shared_run: InlineRun) -> Arrays:
    """Return the weights after two rounds in which nobody lies, by the plain average."""
    return shared_run(f"nodes=5 rounds=2 {SHORT}").weights


def off_course(run: Run, honest: Arrays) -> float:
    """Return how far a run's weights are from those of the honest run, in units of how far that one came."""
    return apart(run.weights, honest) / apart(honest, initial())


# --- federation.max_update -------------------------------------------------------------------------


def check_left_out(run: Run, honest: Arrays) -> Iterator[str]:
    """Yield why the liar was left out in each round; the others came as far as without it."""
    assert off_course(run, honest) < 1
    for line in run.rounds:
        assert line["nodes"] == HONEST
        (left_out,) = line["left_out"]
        assert left_out.startswith("node 1 (scan): ")
        yield left_out


def test_one_huge_reply_neither_fails_the_run_nor_its_resume(
    run_inline: InlineRun, honest: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Averaged, 9e5 would leave weights from which every honest node's reply is above max_value."""
    given: dict[str, Any] = {"nodes": 5, "rounds": 2, "set": SHORT, "grid": lying(everywhere)}
    whole = run_inline(**given)
    assert all("federation.max_updat" in left_out for left_out in check_left_out(whole, honest))
    call, cut = server_app.Progress.__call__, whole.folder.parent / "cut"

    def killed(self: Any, result: Any, weights: Any) -> None:
        call(self, result, weights)
        raise Killed

    monkeypatch.setattr(server_app.Progress, "__call__", killed)
    with pytest.raises(Killed):
        run_inline(**given, output_dir=str(cut))
    monkeypatch.setattr(server_app.Progress, "__call__", call)
    (folder,) = cut.iterdir()
    resumed = Run(runner.run_inline({"resume": str(folder)}, 5))
    assert resumed.results["weights_sha256"] == whole.results["weights_sha256"]


def test_a_node_that_goes_far_from_the_others_is_left_out(run_inline: InlineRun, honest: Arrays) -> None:
    run = run_inline(f"nodes=5 rounds=2 {SHORT}", grid=lying(flipped))
    for left_out in check_left_out(run, honest):
        bound = re.search(r"allowed for its images is ([\d.]+) at most", left_out)
        assert bound and 10 <= float(bound[1]) < 20, left_out  # more than 10 where honest nodes learn little yet


# --- announced images, and a model that goes bad -----------------------------------------------------


def announcing(images: int, times: float) -> type[ListeningGrid]:
    """Return a grid in which one node announces so many images of a class, and goes so far the other way."""

    def change(message: Message, reply: Message) -> Message:
        said = reply.content.metric_records.get("metrics", {})
        if "class-counts" in said:
            said["class-counts"] = [images] * 10
        if message.metadata.message_type == "train":
            sent, values = (decode(of.content.array_records["arrays"]) for of in (message, reply))
            reply.content["arrays"] = encode({name: sent[name] - times * (values[name] - sent[name]) for name in sent})
            said["num-examples"] = 10 * images
        return reply

    return changing(change, nodes=[LIAR])


LONGER = "train.epochs=5 allocation.share=0.2 train.lr=0.03 dataset.domains=[scan] evaluate.every=9 evaluate.last=1"
SOONER = "train.epochs=4 allocation.share=0.1 train.lr=0.05 dataset.domains=[scan] evaluate.every=9 evaluate.last=1"


@pytest.mark.parametrize(
    ("images", "times", "settings", "counts"),
    [(10**6, 1.0, SOONER, 3600), pytest.param(10**8, 5.0, LONGER, 7200, marks=pytest.mark.long)],
)
def test_a_run_outlasts_a_node_that_announces_ten_million_images(
    images: int, times: float, settings: str, counts: int, run_inline: InlineRun,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It is within all bounds, and the honest nodes are those that come to numbers which are not."""
    run = run_inline(f"nodes=5 rounds=8 {settings}", grid=announcing(images, times))
    assert f"{counts} (federation.max_images)" in caplog.text
    (left_out,) = [line for one in run.rounds for line in one["left_out"] if "moved the average by" in line]
    assert left_out.startswith("node 1 (scan): ")
    assert run.rounds[-1]["nodes"] == HONEST
    assert run.results["final"]["scan"] > 50


def test_honest_nodes_that_diverge_by_themselves_end_the_run_as_ever(run_inline: InlineRun) -> None:
    with pytest.raises(FederationError, match=r"^round \d: no node"):
        run_inline(f"nodes=5 rounds=8 {SOONER} train.lr=100")


# --- aggregation.robust ----------------------------------------------------------------------------


def test_the_plain_average_is_led_astray_by_what_no_bound_holds_back(run_inline: InlineRun, honest: Arrays) -> None:
    run = run_inline(f"nodes=5 rounds=2 {SHORT} {UNBOUNDED}", grid=lying(flipped))
    assert run.rounds[1]["nodes"] == [0, 1, 2, 3, 4]
    assert off_course(run, honest) > 20


@pytest.mark.parametrize(("rule", "lie"), [*zip(RULES, [everywhere, flipped] * 2, strict=True)])
def test_a_robust_average_is_not(rule: str, lie: Lie, run_inline: InlineRun, honest: Arrays) -> None:
    run = run_inline(f"nodes=5 rounds=2 {SHORT} {UNBOUNDED} aggregation.robust={rule}", grid=lying(lie))
    assert [line["nodes"] for line in run.rounds] == [[0, 1, 2, 3, 4]] * 2
    assert off_course(run, honest) < 1.5


@pytest.mark.parametrize(
    ("settings", "nodes"), [("krum", 4), ("trimmed_mean", 4), ("median", 2), ("median federation.participation=0.5", 4)]
)
def test_too_few_nodes_are_reported_before_the_first_round(
    settings: str, nodes: int, run_inline: InlineRun, tmp_path: Path
) -> None:
    with refused(FederationError, "aggregation.robust=", f"found {2 if 'median' in settings else 4}"):
        run_inline(f"nodes={nodes} rounds=1 {SHORT} aggregation.robust={settings}")
    assert not (tmp_path / "runs").exists()
