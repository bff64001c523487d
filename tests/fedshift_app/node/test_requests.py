"""A real node does what the run's configuration asks for, whatever a message says: its app, called directly."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import ArrayRecord, Message
from real_node import SHORT
from support import Run, listening

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config import registry
from fedshift_app.flower.internals import make_context
from fedshift_app.node import data as node_data
from fedshift_app.node import requests, setup
from fedshift_core.features import ours
from fedshift_core.wire.records import encode

BN = "model.name=cnn_bn"
BN_OWN = f"{BN} evaluate.bn=[averaged,own]"
GA, GAP = "aggregation.weights=ga", "gap: [loss, train]"
MODELS, OWN = "evaluate.client_models", "local_domains: [scan]"
DP = "privacy.name=local-dp privacy.clipping_norm=0.5 privacy.epsilon=8"
SCORE: dict[str, Any] = {"domains": ["scan"], "drawn": [90]}


# --- what the configuration does not ask for ---------------------------------------------------------


def message(text: str) -> dict[str, Any]:
    """Return keys of a message, as YAML has them."""
    keys: dict[str, Any] = yaml.safe_load(f"{{{text}}}")
    return keys


def refused_key(node: Any, kind: str, text: str) -> None:
    """Check that a node refuses a message for its first key."""
    key = text.partition(":")[0].replace("_", "-")
    assert f"sends {key}=" in node.refused(kind, **message(text))


@pytest.mark.parametrize("given", ["", DP])
@pytest.mark.parametrize(
    "more",
    [
        "gap: [loss, train]",
        "gap: [accuracy, train]",
        "gap: ['', '']",
        "gap: 1",
        "local_domains: [scan]",
        "local_domains: []",
        "local_domains: scan",
        "take_statistics: true, bn_images: 2",
        "figures: true",
        "domains: [scan]",
        "validation: true",
    ],
)
def test_training_tells_nothing_besides(given: str, more: str, real: Any) -> None:
    refused_key(real(given), "train", more)


@pytest.mark.parametrize(
    ("given", "asked", "more", "why"),
    [
        (GA, GAP, "gap: [accuracy, train]", "aggregation.gap=loss, aggregation.gap_on=train"),
        (GA, GAP, "gap: [loss, validation]", "aggregation.gap_on=train"),
        (f"{MODELS}=last", OWN, OWN, "client_models=last (rounds=10, evaluate.last=5)"),
        (f"{MODELS}=every", OWN, "local_domains: [sketch]", "this node holds scan"),
        (f"{MODELS}=every", OWN, "local_domains: [scan, scan]", "each to be named once"),
    ],
)
def test_training_tells_what_is_configured_as_it_is(given: str, asked: str, more: str, why: str, real: Any) -> None:
    node = real(given)
    assert why in node.refused("train", **message(more))
    metrics = node.answers("train", 10, **message(asked))["metrics"]
    assert any(name.startswith("local-") for name in metrics)


@pytest.mark.parametrize("images", [1, 999, 1001, True, "1000", None])
@pytest.mark.parametrize("given", ["", DP, "evaluate.bn=[averaged,retaken]", "evaluate.bn=[averaged,own]"])
def test_statistics_are_reported_of_as_many_images_as_configured(images: Any, given: str, real: Any) -> None:
    bn = "model.bn=local" if given == DP else ""
    node = real(f"{BN} {bn} {given}")
    why = node.refused("evaluate", take_statistics=True, bn_images=images)
    assert "take-statistics=True" in why or "bn-images=" in why
    if "retaken" in given:
        assert node.answers("evaluate", take_statistics=True, bn_images=1000)["knowledge"]


def test_statistics_come_with_nothing_else_and_in_scored_rounds_only(real: Any) -> None:
    node = real(f"{BN} evaluate.bn=[averaged,retaken] evaluate.every=4")
    request = {"take_statistics": True, "bn_images": 1000}
    assert "has no place" in node.refused("evaluate", 4, **request, **SCORE)
    assert "round 3 is not scored" in node.refused("evaluate", 3, **request)
    assert "true or absent" in node.refused("evaluate", 4, take_statistics=1, bn_images=1000)


def test_a_node_with_one_image_tells_no_sums(real: Any, monkeypatch: Any) -> None:
    node = real(f"{BN} evaluate.bn=[averaged,retaken]")
    own = node_data.own_images

    def first(config: Any, where: Any) -> Any:
        return node_data.Own(own(config, where).train.select(np.array([0])), None, None)

    monkeypatch.setattr(setup, "own_images", first)
    reply = node.ask("evaluate", take_statistics=True, bn_images=1000)
    assert "could be those of a single one" in str(reply.error.reason)


@pytest.mark.parametrize(
    ("given", "more", "why"),
    [
        ("", "starts: [7], stops: [8]", "for simulations alone"),  # 202 such questions revealed an image
        (DP, "starts: [0], stops: [90], drawn: null", "for simulations alone"),
        ("", "drawn: [1]", "this run scores another share of this node's test images of 'scan'"),
        ("", "drawn: [89]", "this run scores another share"),
        ("", "drawn: [90, 90]", "one count for each domain"),
        ("", "drawn: [-1]", "one count for each domain"),
        ("evaluate.fraction=0.5", "drawn: [90]", "this run scores another share"),
        ("evaluate.fraction=0.9 images.eval_batch=42", "drawn: [84]", "this run scores another share"),
        ("evaluate.fraction=0.001 images.eval_batch=2", "drawn: [2]", "fewer than 16 images tells of single ones"),
        ("", "domains: [sketch]", "this node holds scan"),
        ("", "domains: [scan, scan], drawn: [90, 90]", "each to be named once"),
        ("", "domains: null", "lacks domains"),
        ("evaluate.figures=false", "figures: true", "evaluate.figures=false"),
        ("", "figures: 1", "evaluate.figures=true"),
        ("", "validation: true", "allocation.validation_fraction=0"),
        ("", "bn_ways: [own], bn_images: 1000", "evaluate.bn=[averaged]"),
        ("", "bn_images: 1000", "evaluate.bn=[averaged]"),
        (BN_OWN, "bn_ways: [averaged, own], bn_images: 2", "bn_images=1000"),
        (BN_OWN, "bn_ways: [own], bn_images: 1000", "evaluate.bn=[averaged,own]"),
        (BN_OWN, "", "without bn-ways"),
        ("evaluate.every=7", "", "round 1 is not scored"),
        ("evaluate.test=false allocation.validation_fraction=0.2", "", "evaluate.test=false"),
    ],
)
def test_scores_are_those_that_are_configured(given: str, more: str, why: str, real: Any) -> None:
    assert why in real(given).refused("evaluate", **SCORE | message(more))


def test_under_noise_scores_of_own_test_images_travel_as_configured(real: Any) -> None:
    node = real(DP)
    assert set(node.answers("train")["metrics"]) == {"num-examples"}
    answer = node.answers("evaluate", **SCORE, figures=True)
    assert set(answer["metrics"]) == {"num-examples", "correct/scan", "count/scan", "loss-sum/scan"}


# --- rounds, names, records --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("server_round", [0, -1, 11, 10**9, True, "1", 1.0, None])
def test_rounds_are_those_of_the_run(kind: str, server_round: Any, real: Any) -> None:
    more = SCORE if kind == "evaluate" else {}
    assert "server-round" in real().refused(kind, server_round, **more)


@pytest.mark.parametrize(
    "more",
    [
        "node_index: -1",
        "node_index: 1000000000",
        "node_index: '0'",
        "kept_in: /tmp/x",
        "resumed_after: [11]",
        "resumed_after: [-1]",
        "resumed_after: 3",
        "chosen: [a]",
        "memory_round: 11",
        "engine: inline",
        "run_id: 3",
        "start_digest: 3",
        "secret: 1",
        "told/alpha: 1.0",
        "told/: 1",
    ],
)
@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_no_other_keys_and_values(kind: str, more: str, real: Any) -> None:
    refused_key(real(), kind, more)


@pytest.mark.parametrize("left_out", ["", "domain", "data-dir"])
def test_a_real_node_plays_no_simulated_one(left_out: str, real: Any) -> None:
    """Else the server's words would say which files are read, and parts of test sets would be allowed."""
    node = real()
    node.context = make_context(7, {k: v for k, v in node.context.node_config.items() if k != left_out}, {})
    reply = node.ask("evaluate", engine="simulation", domains=["scan"], drawn=[90], starts=[7], stops=[8])
    assert "takes no part in a simulation" in str(reply.error.reason)


PROTOTYPES = encode({"prototypes": np.zeros((1, 64), np.float32), "labels": np.zeros(1, np.int64)})


@pytest.mark.parametrize(
    ("method", "knowledge", "more", "why"),
    [
        ("fedavg", PROTOTYPES, "", "knowledge 'prototypes'"),
        ("fedproc", encode({"masks": np.zeros(3)}), "", "sends prototypes, labels"),
        ("fedproc", PROTOTYPES, "told/beta: 1.0", "alpha"),
        ("fedproc", PROTOTYPES, "", "'alpha'"),
    ],
)
def test_scalars_and_knowledge_are_those_of_the_method(
    method: str, knowledge: Any, more: str, why: str, real: Any
) -> None:
    node = real(method=method)
    assert why in node.refused("train", records={"knowledge": knowledge}, **message(more))
    if method == "fedproc":
        node.answers("train", records={"knowledge": PROTOTYPES}, **{"told/alpha": 0.5})


WRONG: tuple[Any, ...] = (
    None, "x", b"x", True, -1, 10**18, float("nan"), float("inf"), -0.5, 1e30, [], ["x"], [1.5], [b"x"], [-1],
)  # fmt: skip


@pytest.mark.parametrize("method", registry.METHODS)
def test_a_scalar_is_there_and_what_its_method_declares(method: str, real: Any) -> None:
    """Missing, of another type, not finite, negative or huge: the node's own words, and no error of Python's."""
    own = registry.get(method)
    tells = own.strategy_class().tells or {}
    assert isinstance(tells, dict) or not tells
    if not tells or own.client_class().uses_public:  # which the node has none of
        return
    node = real(f"{own.short} adapt.name=none", method=method)
    for name, value in itertools.product(tells, WRONG):
        reply = node.ask("train", **{f"told/{name}": value})
        if reply.has_error() and value is not None:
            assert str(reply.error.reason).startswith(("refused: ", "the server ")), (name, value, reply.error.reason)
        assert value in (None, True, 10**18) or reply.has_error() or 0 <= value <= 1e9, (name, value)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_key_of_a_feature_holds_what_is_declared(kind: str, real: Any) -> None:
    node = real("federation.secure_sums=on federation.secure_sums_nodes=2")
    for key, value in itertools.product([key.name for feature in ours() for key in getattr(feature, kind)], WRONG[1:]):
        reply = node.ask(kind, **{key: value} | (SCORE if kind == "evaluate" else {}))
        assert not reply.has_error() or str(reply.error.reason).startswith("refused: "), (key, reply.error.reason)


def test_records_are_those_of_the_kind(real: Any) -> None:
    node, more = real(), {"statistics": encode({}), "others": encode({})}
    for name, record in more.items():
        assert f"no record '{name}'" in node.refused("evaluate", records={name: record}, **SCORE)
        assert f"no record '{name}'" in node.refused("train", records={name: record})
    assert "no record 'start'" in node.refused("query", records={"start": encode({})})


# --- one configuration for a run ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        "privacy.name: none",
        "seed: 1",
        "rounds: 11",
        "evaluate.client_models: every, privacy.name: none",
        "evaluate.bn: [averaged, retaken], privacy.name: none",
    ],
)
def test_the_configuration_of_a_run_is_its_first(changes: str, real: Any) -> None:
    node = real(f"{DP} {BN} model.bn=local")
    first = node.run
    node.answers("query")
    changed = json.loads(first)
    for key, value in message(changes).items():
        section, _, name = key.rpartition(".")
        (changed[section] if section else changed)[name] = value
    node.run = json.dumps(changed)
    for kind, more in (("train", {}), ("evaluate", SCORE), ("query", {})):
        assert "another configuration within one run" in node.refused(kind, **more)
    node.run = first
    node.answers("train")


def test_a_refused_configuration_is_not_kept(real: Any) -> None:
    node = real()
    node.run = json.dumps(json.loads(node.run) | {"strange": 1})
    assert "strange" in str(node.ask("train").error.reason)
    node.configure()
    assert "gap" in node.refused("train", gap=["loss", "train"])
    node.answers("train")


def test_what_may_change_is_what_auto_precision_has_come_to_and_all_in_another_run_of_flowers(real: Any) -> None:
    """As one that is resumed, with more rounds: whether in a new context or, as here, in the same."""
    node = real("train.precision=auto")
    node.answers("query")
    changed = json.loads(node.run)
    changed["train"]["arithmetic"] = "hardware"
    node.run = json.dumps(changed)
    node.answers("train")
    node.context.state.config_records[requests.PINS]["flower-run"] = "of before"
    node.run = json.dumps(changed | {"rounds": 12})
    node.answers("train", 12)
    assert node.context.state.config_records[requests.PINS]["flower-run"] != "of before"


@pytest.mark.parametrize(("key", "value"), [("run_id", "b" * 32), ("node_index", 1), ("start_digest", "c" * 64)])
def test_run_and_place_do_not_change_either(key: str, value: Any, real: Any) -> None:
    node = real()
    first = {"start_digest": "d" * 64} if key == "start_digest" else {}
    node.ask("train", **first)
    assert f"sends {key.replace('_', '-')}={value!r} within one run" in node.refused("train", **{key: value})


def test_under_noise_a_round_is_trained_once(real: Any) -> None:
    """The mean of many noised updates of one round has next to no noise."""
    node = real(DP)
    node.answers("train", 2)
    for server_round in (1, 2):
        assert "has trained in round 2" in node.refused("train", server_round)
    node.answers("train", 3)
    plain = real()
    plain.answers("train", 2)
    plain.answers("train", 2)


def test_noise_of_the_seed_is_refused_by_a_node(real: Any) -> None:
    node = real("method.repeatable_noise=true", method="i2pfl")
    node.weights = ArrayRecord()
    for kind in ("query", "train", "evaluate"):
        assert "method.repeatable_noise=true serves in simulation only" in str(node.ask(kind).error.reason)


# --- an honest deployment ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("fedavg", "evaluate.fraction=0.5 evaluate.last=1 allocation.validation_fraction=0.2"),
        ("fedavg", f"{BN} evaluate.bn=[averaged,retaken,own,batch] evaluate.client_models=every"),
        ("fedavg", GA),
        ("fedcode", ""),
    ],
)
def test_no_node_refuses_an_honest_server_which_sends_no_parts(
    method: str, given: str, folders: list[NodeFolder], on_real_nodes: Callable[..., Run]
) -> None:
    sent: list[set[str]] = []

    def note(message: Message, reply: Message) -> Message:
        sent.append(set(message.content.config_records["config"]))
        assert not reply.has_error(), reply.error.reason
        return reply

    configs = [{"domain": folder.domain, "data-dir": str(folder.path)} for folder in folders]
    flat = {"method": method, "rounds": 2, "set": f"{SHORT} federation.min_nodes=2 {given}"}
    run = on_real_nodes(configs, grid=listening(note), **flat)
    assert all(line["nodes"] == [0, 1] and not line.get("left_out") for line in run.rounds)
    features = {key.name for feature in ours() for key in (*feature.train, *feature.evaluate)}
    allowed = features.union(*requests.ALLOWED.values()) - {"starts", "stops"}
    assert all(key in allowed or key.startswith("told/") for keys in sent for key in keys)
