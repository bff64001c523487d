"""Evaluation shared out over nodes, and in which order messages go: neither changes a number."""

from typing import Any

import pytest
from flwr.app import Message, MessageType
from support import InlineRun, ListeningGrid

from fedshift_strategies.federation import evaluation

#: 90 test images a domain: 23 batches.
FEW = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 images.eval_batch=4"
Sent = list[tuple[str, dict[str, Any]]]


class Traffic:
    """Writes down what every message asks for; may turn round the order of messages and of replies."""

    def __init__(self, turned: bool = False) -> None:
        self.sent: Sent = []
        traffic = self

        class Grid(ListeningGrid):
            def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
                requests = list(messages)
                for message in requests:
                    config = message.content.config_records["config"]
                    traffic.sent.append((message.metadata.message_type, dict(config)))
                replies = super().send_and_receive(requests[::-1] if turned else requests, timeout=timeout)
                return replies[1::2] + replies[::2] if turned else replies

        self.grid = Grid

    def evaluated(self) -> list[tuple[int, str, int, int]]:
        """Return node, domain, start and stop of every part, in the order of sending."""
        return [
            (config["node-index"], *part)
            for kind, config in self.sent
            if kind == MessageType.EVALUATE
            for part in zip(config["domains"], config["starts"], config["stops"], strict=True)
        ]


def _numbers(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "seconds"}


@pytest.mark.parametrize(
    ("method", "held_out"),
    [("i2pfl", "allocation.held_out=[sketch]"), pytest.param("fedavg", "", marks=pytest.mark.long)],
)
def test_many_nodes_give_the_bits_of_one_that_scores_everything(
    method: str, held_out: str, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, alone = Traffic(), Traffic()
    given = {"nodes": 4, "rounds": 2, "method": method, "set": f"{FEW} {held_out}"}
    parts = run_inline(**given, grid=shared.grid)
    monkeypatch.setattr(evaluation, "MIN_BATCHES", 1000)
    whole = run_inline(**given, grid=alone.grid)
    assert [_numbers(line) for line in parts.rounds] == [_numbers(line) for line in whole.rounds]
    assert parts.results["weights_sha256"] == whole.results["weights_sha256"]
    assert len(shared.evaluated()) == 2 * 4 and len(alone.evaluated()) == 2 * 2
    for domain in ("scan", "sketch"):
        cuts = sorted((start, stop) for _, name, start, stop in shared.evaluated()[:4] if name == domain)
        assert cuts == [(0, 44), (44, 90)]


def test_the_order_of_messages_and_replies_changes_nothing(run_inline: InlineRun) -> None:
    for method in ("fedavg", "i2pfl"):
        given = {"nodes": 4, "rounds": 2, "method": method, "set": FEW}
        forward = run_inline(**given, grid=Traffic().grid)
        turned = run_inline(**given, grid=Traffic(turned=True).grid)
        assert [_numbers(line) for line in forward.rounds] == [_numbers(line) for line in turned.rounds]
        assert forward.results["weights_sha256"] == turned.results["weights_sha256"]


def test_a_share_of_the_test_images_is_scored_before_the_last_five_rounds(run_inline: InlineRun, capsys: Any) -> None:
    traffic = Traffic()
    given = {"nodes": 2, "rounds": 7, "set": FEW.replace("eval_batch=4", "eval_batch=10")}
    part = run_inline(**given, evaluate_fraction=0.2, grid=traffic.grid)
    shown = capsys.readouterr().out
    whole = run_inline(**given)
    assert part.results["weights_sha256"] == whole.results["weights_sha256"]
    assert [line.get("evaluated_share") for line in part.rounds] == [round(20 / 90, 4)] * 2 + [None] * 5
    assert [line["accuracy"] for line in part.rounds[2:]] == [line["accuracy"] for line in whole.rounds[2:]]
    assert {stop - start for _, _, start, stop in traffic.evaluated()[: 2 * 2]} == {20}
    assert part.results["best_test"]["round"] > 2  # an accuracy on few images must not be the best of a run
    assert (part.results["partly_scored_rounds"], whole.results["partly_scored_rounds"]) == (2, 0)
    for key in ("domains", "final", "avg", "std"):
        assert part.results[key] == whole.results[key]
    assert shown.count("22.2 %") == 2
