"""Strategies for one's own Flower app: the bits of a FedShift round, Flower's messages, errors that name arguments."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg, Result
from refusals import refused
from support import ROOT, load_benchmark, new_strategy, node

import fedshift_strategies
from fedshift.run.engine.inline import InlineGrid
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.wire.records import decode, encode
from fedshift_strategies import FedProto, fitting, plain
from fedshift_strategies.contributions import Whole
from fedshift_strategies.federation.context import Ask, RoundResult
from fedshift_strategies.federation.updates import Update

C, D, ROUNDS = 3, 2, 3
FACTS = {"seed": 0, "num_classes": C, "feature_dim": D, "buffers": ()}
WEIGHTS: Arrays = {
    "encoder.weight": np.arange(6, dtype=np.float32).reshape(3, 2) / 7,
    "classifier.weight": np.ones((C, D), np.float32) / 3,
    "classifier.bias": np.zeros(C, np.float32),
    "encoder.dse_bn.weight": np.ones(2, np.float32) / 9,
    "count": np.array(5),
}
#: Sizes of what is a node's own, by the letter that a method declares; of the arrays of one node alike.
SIZES = {"C": C, "D": D, "P": 4, "S": 5}


def made(name: str, **given: Any) -> plain.PlainStrategy:
    """Return a strategy with what it needs of the run."""
    facts = {key: value for key, value in FACTS.items() if key in fitting.named(name).arguments.model_fields}
    return fitting.named(name)(**facts | given)


def sent_by(index: int, server_round: int, expected: Mapping[str, Any]) -> tuple[Arrays, Arrays, int]:
    """Return weights, knowledge and the number of images of a node in a round."""
    rng = np.random.default_rng((index, server_round))
    weights = {name: array + rng.normal(size=array.shape).astype(np.float32) for name, array in WEIGHTS.items()}
    weights["count"] = np.array(5 + index)
    knowledge: Arrays = {}
    for key, letters in expected.items():
        shape = [SIZES.get(letter, getattr(letter, "most", letter)) for letter in letters]
        integers = {"counts": 9, "labels": C}
        if key in integers or isinstance(letters, Whole):
            knowledge[key] = rng.integers(0, integers.get(key, 2**30), shape)
        else:
            knowledge[key] = rng.normal(size=shape).astype(np.float32)
    return weights, knowledge, 10 + index * 3


def client_app(answers: Callable[[int, RecordDict], tuple[Arrays, Arrays, int]]) -> ClientApp:
    """Return nodes that know nothing of FedShift, whose ids begin at 1000."""
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        weights, knowledge, number = answers(msg.metadata.dst_node_id - 1000, msg.content)
        content = RecordDict({
            "arrays": ArrayRecord({name: encode({name: a})[name] for name, a in weights.items()}),
            "metrics": MetricRecord({"num-examples": number, "loss": number / 25}),
        })  # fmt: skip
        if knowledge:
            content["knowledge"] = encode(knowledge)
        return Message(content, reply_to=msg)

    @app.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        metrics = MetricRecord(
            {"num-examples": 5, "mean": float(msg.content["arrays"]["encoder.weight"].numpy().mean())}
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return app


# --- the same numbers --------------------------------------------------------------------------------


def same(a: Arrays, b: Arrays) -> bool:
    return {n: (x.dtype, x.tobytes()) for n, x in a.items()} == {n: (x.dtype, x.tobytes()) for n, x in b.items()}


@pytest.mark.parametrize("name", fitting.names())
def test_the_bits_are_those_of_a_fedshift_round(name: str) -> None:
    """The same updates go through a run's strategy, hook by hook as its round calls them, and through Flower's loop."""
    kind = fitting.strategies()[name]
    theirs = new_strategy(kind, classes=C, width=D, rounds=ROUNDS, **SHORT.get(name, {}))
    nodes = [node(index) for index in range(3)]
    theirs.roster._nodes = {each.node_id: each for each in nodes}
    messages: list[tuple[int, int, Arrays, dict[str, Any]]] = []
    ours = made(name, **SHORT.get(name, {}))

    def answer(index: int, content: RecordDict) -> tuple[Arrays, Arrays, int]:
        config = dict(content.config_records["config"])
        known = decode(content.array_records["knowledge"]) if "knowledge" in content else {}
        messages.append((ours.server_round, index, known, config))
        return sent_by(index, ours.server_round, ours.expected())

    rounds: list[tuple[Arrays, Arrays, Arrays]] = []

    def evaluated(server_round: int, arrays: ArrayRecord) -> None:
        rounds.append((decode(arrays), dict(ours.knowledge), dict(ours.state)))

    ours.start(InlineGrid(client_app(answer), 3), encode(WEIGHTS), ROUNDS, evaluate_fn=evaluated)
    global_ = encode(WEIGHTS)
    for server_round in range(1, ROUNDS + 1):
        theirs._result, theirs._global = RoundResult(server_round), global_
        if server_round == 1:
            theirs.start_run(global_)
        ask = Ask(server_round, True)
        for number, index, known, config in messages:
            if number == server_round:
                assert same(known, dict(theirs.knowledge_for(nodes[index], ask)))
                assert config == {"server-round": server_round, **theirs.tell(nodes[index], ask)}
        updates = []
        for each in nodes:
            weights, knowledge, images = sent_by(each.index, server_round, theirs.expected())
            updates.append(Update(each, encode(weights), knowledge, images, {}))
        weighed = theirs.node_weights(updates)
        theirs.merge_knowledge(updates)
        theirs._global = global_ = theirs.merge(updates, weighed)
        for found, expected in zip(
            rounds[server_round], (decode(global_), theirs.knowledge, theirs.state), strict=True
        ):
            assert same(found, expected), server_round
    assert len(messages) == 3 * ROUNDS
    assert not same(rounds[-1][0], WEIGHTS)


#: Arguments with which three rounds show all that a method does.
SHORT: dict[str, dict[str, Any]] = {"FedICON": {"classifier_rounds": 1}}


def test_methods_that_read_more_than_flower_knows_do_not_fit() -> None:
    lacks = {name: why for name, kind in fitting.strategies().items() if (why := fitting.missing(kind))}
    domains = "federation.domains, node.domain"
    assert {name: lacks[name] for name in ("Copa", "FedDAP", "FedMD", "GGEUR")} == {
        "Copa": domains, "FedDAP": domains, "FedMD": "node.num_public", "GGEUR": domains,
    }  # fmt: skip
    assert not {"FedProto", "Scaffold"} & {*lacks}
    assert {*fitting.names()} == {*fitting.strategies()} - {*lacks}
    with refused(ImportError, "FedMD", "node.num_public"):
        fitting.named("FedMD")


# --- as a Flower user has it -------------------------------------------------------------------------


def run(strategy: FedAvg, answers: Callable[[int, RecordDict], tuple[Arrays, Arrays, int]], **more: Any) -> Result:
    return strategy.start(InlineGrid(client_app(answers), 4), encode(WEIGHTS), num_rounds=2, **more)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("FedProto", {"fraction_train": 1.5}),
        ("FedProto", {"prototype_mean": "best"}),
        ("FedProto", {"fraction_fit": 1.0}),
        ("FedProto", {"min_train_nodes": True}),
        ("I2PFL", {"inter_proto": "finch"}),
        ("FedDyn", {"alpha_by_images": True}),
        ("Scaffold", {"buffers": 3}),
    ],
)
def test_a_bad_argument_is_named(name: str, given: dict[str, Any]) -> None:
    with refused(ConfigError, f"{name}: ", *given):
        made(name, **given)


def test_what_the_run_must_say_is_asked_for() -> None:
    with refused(ConfigError, "Scaffold: ", "buffers"):
        fitting.named("Scaffold")()
    with refused(ConfigError, "classifier_rounds=10"):
        run(made("FedICON"), lambda *_: (WEIGHTS, {}, 1))


def prototypes(rows: Any) -> Arrays:
    return {"prototypes": np.array(rows), "counts": np.ones(len(rows), int)}


GOOD = prototypes(np.ones((C, D), np.float32))


@pytest.mark.parametrize(
    ("weights", "knowledge", "images", "named"),
    [
        (WEIGHTS, {}, 1, "prototypes"),
        (WEIGHTS, prototypes(np.ones((C, D))), 1, "float32"),
        (WEIGHTS, prototypes(np.ones((C + 1, D), np.float32)), 1, "prototypes"),
        ({**WEIGHTS, "more": np.ones(1)}, {}, 1, "more"),
        (WEIGHTS, GOOD, 0, "num-examples"),
        (WEIGHTS, {}, -1, "num-examples=-1"),
    ],
)
def test_a_reply_that_does_not_fit_ends_the_run(weights: Arrays, knowledge: Arrays, images: int, named: str) -> None:
    def answers(index: int, content: RecordDict) -> tuple[Arrays, Arrays, int]:
        good = index != 2 and named == "prototypes"
        return (WEIGHTS, GOOD, 1) if good else (weights, knowledge, images)

    with pytest.raises(InconsistentMessageReplies, match=named):
        run(FedProto(), answers)


# --- names -------------------------------------------------------------------------------------------


def test_names_are_there_when_asked_for_without_torch() -> None:
    code = """
import sys
import fedshift_strategies
assert "flwr" not in sys.modules
from fedshift_strategies import *
assert FedProto.__module__ == "fedshift_strategies" and "torch" not in sys.modules
assert "Scaffold" in dir(fedshift_strategies) and not hasattr(fedshift_strategies, "FedAvg")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert fedshift_strategies.__all__ == [*fitting.names()]


def test_the_stub_is_up_to_date() -> None:
    script = load_benchmark("reference_pages")
    stub = ROOT / "strategies" / "fedshift_strategies" / "__init__.pyi"
    assert stub.read_text() == script.strategies("stub"), "run: python benchmarks/reference_pages.py strategies"
    documented = "It sends besides weights: record `knowledge`: prototypes (C, D) float32, counts (C,) int64."
    assert documented in (FedProto.__doc__ or "")
