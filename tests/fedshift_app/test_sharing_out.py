"""Evaluation shared out over nodes, and in which order messages go: neither changes a number."""

from typing import Any

import pytest
from flwr.app import Message
from support import InlineRun, ListeningGrid, Run
from traffic import Pair, asked, noting

from fedshift_strategies.federation import evaluation

#: 90 test images a domain: 23 batches.
FEW = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 images.eval_batch=4"


class Turned(ListeningGrid):
    """Turns round the order of messages and of replies."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        replies = super().send_and_receive([*messages][::-1], timeout=timeout)
        return replies[1::2] + replies[::2]


def evaluated(seen: list[Pair]) -> list[tuple[str, int, int]]:
    """Return domain, start and stop of every part, in the order of sending."""
    parts = [[asked(message)[key] for key in ("domains", "starts", "stops")] for message, _ in seen]
    return [part for of_node in parts for part in zip(*of_node, strict=True)]


def check_same(one: Run, other: Run) -> None:
    """Check that two runs differ in seconds alone."""
    lines, others = ([line | {"seconds": 0} for line in run.rounds] for run in (one, other))
    assert lines == others
    assert one.results["weights_sha256"] == other.results["weights_sha256"]


@pytest.mark.parametrize(
    "typed",
    ["method=i2pfl allocation.held_out=[sketch]", pytest.param("method=fedavg", marks=pytest.mark.long)],
)
def test_many_nodes_give_the_bits_of_one_that_scores_everything(
    typed: str, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, alone = list[Pair](), list[Pair]()
    given = f"nodes=4 rounds=2 {FEW} {typed}"
    parts = run_inline(given, grid=noting(shared, "evaluate"))
    monkeypatch.setattr(evaluation, "MIN_BATCHES", 1000)
    check_same(parts, run_inline(given, grid=noting(alone, "evaluate")))
    assert (len(evaluated(shared)), len(evaluated(alone))) == (2 * 4, 2 * 2)
    wanted = [(domain, *cut) for domain in ("scan", "sketch") for cut in ((0, 44), (44, 90))]
    assert sorted(evaluated(shared)[:4]) == wanted


@pytest.mark.parametrize("method", [pytest.param("fedavg", marks=pytest.mark.long), "i2pfl"])
def test_the_order_of_messages_and_replies_changes_nothing(method: str, run_inline: InlineRun) -> None:
    given = f"method={method} nodes=4 rounds=2 {FEW}"
    check_same(run_inline(given), run_inline(given, grid=Turned))


def test_a_share_of_the_test_images_is_scored_before_the_last_five_rounds(run_inline: InlineRun, capsys: Any) -> None:
    seen: list[Pair] = []
    given = f"nodes=2 rounds=7 {FEW.replace('batch=4', 'batch=10')} dataset.domains=[scan]"
    part = run_inline(given, evaluate_fraction=0.2, grid=noting(seen, "evaluate"))
    assert capsys.readouterr().out.count("22.2 %") == 2
    whole = run_inline(given)
    assert [line.get("evaluated_share") for line in part.rounds] == [round(20 / 90, 4)] * 2 + [None] * 5
    assert [line["accuracy"] for line in part.rounds[2:]] == [line["accuracy"] for line in whole.rounds[2:]]
    assert {stop - start for _, start, stop in evaluated(seen)[:2]} == {20}
    assert part.results["best_test"]["round"] > 2  # an accuracy on few images must not be the best of a run
    assert (part.results["partly_scored_rounds"], whole.results["partly_scored_rounds"]) == (2, 0)
    for key in ("weights_sha256", "domains", "final", "avg", "std"):
        assert part.results[key] == whole.results[key]
