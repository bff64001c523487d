"""Long work goes first where messages wait for an actor."""

from typing import Any

import pytest
from flwr.app import Message, RecordDict
from refusals import refused
from support import node as node_of

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import EvaluateConfig
from fedshift_app.flower.internals import identify_process
from fedshift_core.errors import ConfigError
from fedshift_strategies.federation import post


def messages(number: int) -> list[Message]:
    identify_process()
    return [Message(RecordDict(), 100 + i, "train") for i in range(number)]


def test_longest_first_then_by_index() -> None:
    nodes = [node_of(i, (size,), node_id=9 - i) for i, size in enumerate((3, 8, 3, 9))]
    assert [node.index for node in post.longest_first({node: node.num_examples for node in nodes[::-1]})] == [
        3, 1, 0, 2,
    ]  # fmt: skip


def test_the_rest_is_sent_once_the_long_ones_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = messages(4)
    looks: list[int] = []

    def queue(seconds: float) -> None:
        looks.append(len(came))
        sent[len(looks) - 1].metadata.delivered_at = "now"

    monkeypatch.setattr(post.time, "sleep", queue)
    came: list[Message] = []
    for message in post.in_waves(sent, [9, 8, 2, 1]):
        came.append(message)
    assert came == sent
    assert looks == [2, 2]  # two are above the mean, and each was waited for


def test_a_message_that_is_never_queued_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "GIVE_UP_SECONDS", 0.0)
    sent = messages(3)
    assert list(post.in_waves(sent, [9, 1, 1])) == sent


# --- which rounds are scored --------------------------------------------------------------------------------


def scored(rounds: int, **config: Any) -> list[int]:
    schedule = EvaluateConfig(**config)
    return [number for number in range(1, rounds + 1) if schedule.scores_global(number, rounds)]


def with_clients(rounds: int, which: Any) -> list[int]:
    schedule = EvaluateConfig(client_models=which)
    return [number for number in range(1, rounds + 1) if schedule.scores_clients(number, rounds)]


def test_client_models_are_scored_when_asked_for() -> None:
    assert with_clients(8, "off") == with_clients(8, False) == []  # YAML reads off as false
    assert with_clients(7, "every") == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "text",
    ["every=0", "every=1.5", "last=0", "last=6", "fraction=0", "fraction=1.5", "client_models=on", "clients=last"],
)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    key, value = text.split("=")
    with refused(ConfigError, f"evaluate.{key}", "" if key == "clients" else value.replace("on", "off")):
        resolve({"set": f"evaluate.{text}"})
