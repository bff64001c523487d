"""Which models are scored in a run: the nodes' own after local training, the global one every so many rounds,
and on validation parts. None of it changes the training.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType, MetricRecord
from support import ASKED_FOR, InlineRun, ListeningGrid, client_setup, image_set, node_features, shared

from fedshift_clients.base import DomainClient
from fedshift_clients.models.networks import build
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.params import Params
from fedshift_core.wire.names import (
    BN_WAYS,
    CORRECT,
    DOMAINS,
    LOCAL_CORRECT,
    LOCAL_COUNT,
    LOCAL_DOMAINS,
    LOCAL_OWN_CORRECT,
    LOCAL_OWN_COUNT,
    SERVER_ROUND,
    VALIDATION,
    VALIDATION_CORRECT,
    VALIDATION_COUNT,
    VALIDATION_LOSS_SUM,
)  # fmt: skip
from fedshift_datasets.base import ImageSet

TINY = "train.epochs=1 allocation.share=0.1"
LAST = f"{TINY} evaluate.client_models=last"
NAMES = ["scan", "texture", "street", "sketch"]
Change = Callable[[Message, Message], Message | None]


class Traffic:
    """Makes a grid that keeps every message of a run, and may change the replies."""

    def __init__(self, change: Change | None = None) -> None:
        self.seen: list[tuple[Message, Message]] = []
        self.change = change

    def make(self, *args: Any) -> ListeningGrid:
        traffic = self

        class Grid(ListeningGrid):
            def pass_on(self, message: Message, reply: Message) -> Message | None:
                traffic.seen.append((message, reply))
                return reply if traffic.change is None else traffic.change(message, reply)

        return Grid(*args)

    def of(self, kind: str, server_round: int) -> list[tuple[dict[str, Any], Message, Message]]:
        """Return the config record, question and reply of each message of a kind in a round."""
        collected = []
        for requested, reply in self.seen:
            config = dict(requested.content.config_records["config"])
            if requested.metadata.message_type == kind and config[SERVER_ROUND] == server_round:
                collected.append((config, requested, reply))
        return collected


def numbers(message: Message) -> dict[str, Any]:
    return dict(message.content.metric_records["metrics"])


# --- the node ---------------------------------------------------------------------------------------------


def make_client(model: str, bn: Any, validation: ImageSet | None = None) -> DomainClient:
    configured = client_setup(model, bn=bn, index=0, seed=3, images=ImageConfig(), epochs=1)
    tests = {"own": image_set(17, seed=1), "other": image_set(9, seed=2)}
    own = {} if validation is None else {"validation": validation}
    return DomainClient(
        build(model, 3, 0),
        configured,
        Params(),
        image_set(24),
        tests.__getitem__,
        own,
        features=node_features(*ASKED_FOR),
    )


@pytest.mark.parametrize(("model", "bn"), [("cnn", "average"), ("cnn_bn", "local")])
def test_a_client_model_has_the_nodes_own_parts_and_its_freshly_trained_shared_ones(model: str, bn: str) -> None:
    client = make_client(model, bn)
    before = shared(client)
    weights, _, metrics = client.fit(before, {SERVER_ROUND: 1, LOCAL_DOMAINS: ["own", "other"]})
    assert (metrics[LOCAL_COUNT + "own"], metrics[LOCAL_COUNT + "other"]) == (17, 9)
    # The trained shared weights with what the node keeps to itself make up the same model again.
    again = client.evaluate(weights, {DOMAINS: ["own", "other"]})[2]
    assert all(metrics[LOCAL_CORRECT + name] == again[CORRECT + name] for name in ("own", "other"))
    assert any(not np.array_equal(a, b) for a, b in zip(before, weights, strict=True))


def test_a_node_with_a_test_set_of_its_own_scores_that_too_when_asked() -> None:
    client = make_client("cnn", "average")
    client.own_sets = {"test": image_set(7, seed=5)}
    metrics = client.fit(shared(client), {SERVER_ROUND: 1, LOCAL_DOMAINS: ["own"]})[2]
    assert (metrics[LOCAL_OWN_CORRECT], metrics[LOCAL_OWN_COUNT]) == (client.score(image_set(7, seed=5))[0], 7)
    assert not [name for name in client.fit(shared(client), {SERVER_ROUND: 1})[2] if name.startswith("local")]


@pytest.mark.parametrize(("ways", "mixed"), [(["averaged"], False), (["batch"], True)])
def test_a_validation_part_is_mixed_where_scores_go_by_the_batch(ways: list[str], mixed: bool) -> None:
    part = image_set(40, seed=4)
    client, seen = make_client("cnn_bn", "average", part), []
    score = client.score
    vars(client)["score"] = lambda images, *more: seen.append(images) or score(images, *more)
    client.evaluate(shared(client), {SERVER_ROUND: 1, DOMAINS: [], VALIDATION: True, BN_WAYS: ways})
    listed = [image.tobytes() for image in part.x]
    scored = [image.tobytes() for image in seen[0].x]
    assert (scored != listed, sorted(scored)) == (mixed, sorted(listed))


def test_a_validation_part_is_scored_only_where_it_is_there_and_asked_for() -> None:
    with_part, without = make_client("cnn", "average", image_set(11, seed=4)), make_client("cnn", "average")
    requested = {DOMAINS: [], VALIDATION: True}
    loss, images, metrics = with_part.evaluate(shared(with_part), requested)
    assert (loss, images) == (0.0, 0)
    assert set(metrics) == {VALIDATION_CORRECT, VALIDATION_COUNT, VALIDATION_LOSS_SUM}
    assert (metrics[VALIDATION_CORRECT], metrics[VALIDATION_COUNT]) == (with_part.score(image_set(11, seed=4))[0], 11)
    assert metrics[VALIDATION_LOSS_SUM] == with_part.score(image_set(11, seed=4))[1] > 0
    assert without.evaluate(shared(without), requested)[2] == {}
    wild = [array * np.float32(1e30) for array in shared(with_part)]  # logits beyond float32
    assert set(with_part.evaluate(wild, requested)[2]) == {VALIDATION_CORRECT, VALIDATION_COUNT}
    assert VALIDATION_COUNT not in with_part.evaluate(shared(with_part), {DOMAINS: ["own"]})[2]


# --- client models in a run -------------------------------------------------------------------------------


def test_off_by_default_and_nothing_of_it_travels(run_inline: InlineRun) -> None:
    traffic = Traffic()
    run = run_inline(rounds=1, set=TINY, grid=traffic.make)
    for config, _, reply in traffic.of(MessageType.TRAIN, 1) + traffic.of(MessageType.EVALUATE, 1):
        assert not {LOCAL_DOMAINS, VALIDATION} & set(config)
        assert not [name for name in numbers(reply) if name.startswith(("local", "validation"))]
    assert not {"client_models", "validation", "best_validation"} & (set(run.rounds[0]) | set(run.results))


def test_the_last_five_rounds_and_the_numbers_of_the_run_stay_as_they_were(run_inline: InlineRun) -> None:
    traffic = Traffic()
    plain = run_inline(rounds=6, nodes=5, set=TINY)
    run = run_inline(rounds=6, nodes=5, set=LAST, grid=traffic.make)
    assert run.results["weights_sha256"] == plain.results["weights_sha256"]
    assert [untouched(line) for line in run.rounds] == [untouched(line) for line in plain.rounds]
    assert ["client_models" in line for line in run.rounds] == [False] + [True] * 5
    assert all(LOCAL_DOMAINS not in config for config, _, _ in traffic.of(MessageType.TRAIN, 1))
    for config, _, reply in traffic.of(MessageType.TRAIN, 2):
        assert config[LOCAL_DOMAINS] == NAMES
        result = run.rounds[1]["client_models"]["matrix"][str(config["node-index"])]
        outcome = numbers(reply)
        assert result == {name: 100 * outcome[LOCAL_CORRECT + name] / outcome[LOCAL_COUNT + name] for name in NAMES}
    outcome = run.results["client_models"]
    assert outcome["averaged_rounds"] == 5
    lines = [line["client_models"] for line in run.rounds[1:]]
    for key in ("lta", "gata", "gasa"):
        assert outcome[key] == pytest.approx(np.mean([line[key] for line in lines]))
    assert outcome["lta"] == pytest.approx(outcome["gasa"])  # nodes of a domain share its test set
    assert outcome["gata"] == pytest.approx(np.mean(list(outcome["ata"].values())))
    assert outcome["cprr"] == pytest.approx(100 * outcome["gata"] / outcome["gasa"])
    assert list(outcome["ata"]) == NAMES


def untouched(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("seconds", "client_models")}


def of_node(index: int, kind: str, change: Change) -> Change:
    """Return ``change`` for the replies of one node to one kind of message."""

    def only(message: Message, reply: Message) -> Message | None:
        config = message.content.config_records["config"]
        concerned = message.metadata.message_type == kind and config.get("node-index") == index
        return change(message, reply) if concerned else reply

    return only


@pytest.mark.parametrize(
    ("lie", "trained"),
    [
        ({LOCAL_CORRECT + "scan": 91.0}, [1, 2, 3]),
        ({LOCAL_CORRECT + "scan": float("nan")}, [1, 2, 3]),
        ({LOCAL_COUNT + "sketch": 91}, [1, 2, 3]),
        ({}, [0, 1, 2, 3]),  # it says nothing: its weights count
    ],
)
def test_a_node_that_says_nonsense_about_its_own_model_is_left_out(
    lie: dict[str, float], trained: list[int], run_inline: InlineRun
) -> None:
    def change(message: Message, reply: Message) -> Message:
        said = {name: value for name, value in numbers(reply).items() if lie or not name.startswith("local")}
        reply.content["metrics"] = MetricRecord(said | lie)
        return reply

    run = run_inline(rounds=1, set=LAST, grid=Traffic(of_node(0, MessageType.TRAIN, change)).make)
    (line,) = run.rounds
    assert line["nodes"] == trained
    assert list(line["client_models"]["matrix"]) == ["1", "2", "3"]
    assert line["left_out"][0].startswith("node 0 (scan): ") and next(iter(lie), "own model") in line["left_out"][0]
    assert not [name for name in line["losses"] if name.startswith("local")]


# --- the global model every so many rounds ----------------------------------------------------------------


def test_rounds_between_are_not_evaluated_and_the_rest_is_the_same(run_inline: InlineRun) -> None:
    traffic = Traffic()
    whole = run_inline(rounds=8, set=TINY)
    run = run_inline(rounds=8, set=f"{TINY} evaluate.every=2", grid=traffic.make)
    assert [len(traffic.of(MessageType.EVALUATE, number)) for number in range(1, 9)] == [0, 4, 0, 4, 4, 4, 4, 4]
    for line, same in zip(run.rounds, whole.rounds, strict=True):
        left_out = line["round"] in (1, 3)
        for key in ("accuracy", "avg", "test_loss"):
            assert line[key] == (None if left_out else same[key])
        assert line["losses"] == same["losses"]
    for key in ("weights_sha256", "domains", "avg", "std", "final", "rounds", "averaged_rounds", "bytes_up"):
        assert run.results[key] == whole.results[key]
    assert run.results["best_test"]["round"] not in (1, 3)


# --- the round chosen on validation parts -----------------------------------------------------------------
