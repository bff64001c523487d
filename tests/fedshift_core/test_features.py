"""Features: what each declares is all that it sends, on either side, and nobody takes in anything else."""

import functools
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict
from refusals import refused
from support import ASKED_FOR, federation, image_set, new_client, node_features, phase, refusal_of, scored, shared
from support import node as node_of

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import AggregationConfig, EvaluateConfig, RunConfig
from fedshift_app.features.validation.node import ValidationOnNode
from fedshift_app.node import requests
from fedshift_app.node.data import Place
from fedshift_app.node.requests import NodeRequest
from fedshift_clients.base import DomainClient
from fedshift_clients.features import About, Call, Next, NodeFeature, Reply
from fedshift_core.errors import FederationError, FedShiftError
from fedshift_core.features import FEATURES, KINDS, Feature, Key, ours, shared_name
from fedshift_core.wire import names as wire
from fedshift_core.wire.records import encode
from fedshift_datasets.base import Source
from fedshift_strategies.features.base import Scoring, Training
from fedshift_strategies.features.catalog import Around, Features

DOMAINS = ("a", "b")
NAMES = [feature.name for feature in ours()]


def declared(name: str, *kinds: str) -> list[Key]:
    return [key for kind in kinds for key in getattr(FEATURES[name], kind)]


def strange(sent: Iterable[str], name: str, *kinds: str) -> list[str]:
    """Return the names that the feature does not declare for these kinds of messages."""
    return [one for one in sent if not any(key.fits(one) for key in declared(name, *kinds))]


# --- the declarations --------------------------------------------------------------------------------


def test_a_name_that_two_features_declare_is_found() -> None:
    assert shared_name(ours()) == ""
    for kind, name, found in (
        ("train", wire.GAP, wire.GAP),
        ("evaluate_reply", *["other-correct/bn=own/"] * 2),
        ("records", wire.COUNTS, wire.COUNTS),
        ("evaluate", wire.GAP, ""),
    ):
        mine = Feature("mine", "", "", **{kind: (Key(name, "", ""),)})  # type: ignore[arg-type]
        assert shared_name((*ours(), mine)) == found
    for key, name, fits in (("count/", "count/a", True), ("way=", "way=own/a", True), ("count", "count/a", False)):
        assert Key(key, "int", "").fits(name) is fits


# --- the server --------------------------------------------------------------------------------------


def run_of(bn: tuple[str, ...], clients: str, rule: dict[str, str], **more: Any) -> dict[str, Any]:
    evaluate = EvaluateConfig(
        bn=bn, figures=clients == "every", client_models=clients, fraction=more.pop("fraction", 1.0)
    )
    return {"evaluate": evaluate, "aggregation": AggregationConfig(**rule), "batchnorms": ("encoder.1",), **more}


#: All of it, nothing of it, and half.
GAPS = {"weights": "ga", "gap": "accuracy", "gap_on": "validation"}
MORE: Any = {"validation_fraction": 0.2, "rounds": 9, "label_mix": "own", "profile": True}
RUNS = (
    run_of(("averaged", "retaken", "own", "batch"), "every", GAPS, **MORE),
    run_of(("averaged",), "off", {}, fraction=0.5),
    run_of(("batch", "own"), "last", {"weights": "ga"}, profile=True),
)


@pytest.mark.parametrize("shared_test", [True, False])
@pytest.mark.parametrize("run", RUNS)
def test_a_server_asks_and_allows_what_its_features_declare(run: Any, shared_test: bool) -> None:
    context = federation(domains=DOMAINS, **run)
    nodes = [node_of(i, (5,), d, 9, shared_test=shared_test, num_validation=4) for i, d in enumerate(DOMAINS)]
    arrays = encode({"encoder.1.running_mean": np.zeros(3, np.float32)})
    for feature in Features(context):
        kept, ask = feature.name, Mock(return_value=[])
        training, scoring = phase(Training, nodes, present=nodes), phase(Scoring, nodes, weights=arrays, ask=ask)
        trains = Around([(kept, feature.on_round(training))])
        scores = Around()
        with suppress(FederationError):  # nobody answers here
            scores = Around([(kept, feature.on_scores(scoring))])
        assert ask.called == (kept == "bn-statistics" and "retaken" in context.config.evaluate.bn)
        scoring.evaluation = context.evaluation(1, nodes, (), scores.asked)
        assert not any(strange(call.args[1], kept, "evaluate") for call in ask.call_args_list)
        for of_feature in scores.asked.values():
            assert not strange((*of_feature.reads, *of_feature.records), kept, "records")
            others = [f"{wire.OTHER_CORRECT}{name}/{domain}" for name in of_feature.others for domain in DOMAINS]
            assert not strange(others, kept, "evaluate_reply")
        for node in nodes:
            for around, kind in ((trains, "train"), (scores, "evaluate")):
                assert not strange(around.options(node), kept, kind)
                assert not strange(around.bounds(node), kept, f"{kind}_reply")


# --- the node ----------------------------------------------------------------------------------------


ASKED: dict[str, Any] = {
    "server-round": 1,
    "domains": ["a"],
    "gap": ["loss", "train"],
    "local-domains": ["a"],
    **dict.fromkeys(("figures", "site-figures", "ask-loss", "validation"), True),
    "bn-ways": ["averaged", "own", "batch"],
    "bn-images": 10,
}


def client(*names: str, config: RunConfig | None = None, model: str = "cnn_bn") -> DomainClient:
    """Return a client with features of these names, of a run where they need one."""
    sets = {"validation": image_set(5), "test": image_set(4)}
    made = new_client(DomainClient, model=model, test_set=lambda domain: image_set(11), own_sets=sets, epochs=1)
    made.features = node_features(*names, config=config)
    if config is not None:
        made.features.attach(made, config)
    return made


def test_a_node_sends_what_its_features_declare_and_all_of_it() -> None:
    """Asked for all there is, the features send each key that they declare; the chain refuses any other."""
    sent: dict[str, set[str]] = {kind: set() for kind in KINDS}

    def note(kind: str, names: Iterable[str]) -> None:
        sent[kind] |= {
            key.name for one in ours() for key in getattr(one, kind) if any(key.fits(name) for name in names)
        }

    made = client(*ASKED_FOR, "profile", config=resolve({"profile": True}))
    note("train_reply", made.fit(shared(made), ASKED)[2])
    scores, answer = scored(made, ASKED), scored(made, ASKED | {"take-statistics": True})
    note("evaluate_reply", scores.metrics)
    note("records", [*scores.records, *([] if answer.knowledge is None else [wire.KNOWLEDGE])])
    noise = resolve({"set": "privacy.name=dp-sgd privacy.noise_multiplier=1 model.name=cnn"})
    private = client("privacy", config=noise, model="cnn")
    note("train_reply", private.fit(shared(private), ASKED)[2])
    numbers, words = node_features(*NAMES).introduce(About({"validation": 5}, ("0" * 64, 3)))
    note("introduction", {**numbers, **words})
    composing = [feature for feature in ours() if feature.task is None]  # a task is on in place of another
    wanted = {kind: {key.name for feature in composing for key in getattr(feature, kind)} for kind in KINDS}
    sent["records"] |= {wire.STATISTICS, wire.SITE_IMAGES, wire.IMAGE_STYLES}  # from the server
    for kind in ("introduction", "train_reply", "evaluate_reply", "records"):
        assert sent[kind] == wanted[kind]


@pytest.mark.parametrize("where", ["metrics", "records"])
@pytest.mark.parametrize("hook", ["on_train", "on_scores"])
def test_a_node_that_would_send_what_its_feature_does_not_declare_sends_nothing(
    hook: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gives(self: NodeFeature, call: Call, next: Next) -> Reply:
        reply = next(call)
        getattr(reply, where)["gift"] = {} if where == "records" else 1
        return reply

    made = client("validation", "figures")
    monkeypatch.setattr(ValidationOnNode, hook, gives)
    with refused(FedShiftError, "validation", "'gift'"):
        (made.fit if hook == "on_train" else made.evaluate)(shared(made), ASKED)


FEDAVG = functools.cache(lambda: resolve({"experiment": "handwritten", "method": "fedavg"}))


def request(kind: str, asked: Mapping[str, Any]) -> NodeRequest:
    config = FEDAVG()
    where = Place(config.dataset.domains[0], 0, 4, Source(None), shared=True, threads=1)
    core = {wire.SERVER_ROUND: 1, wire.NODE_INDEX: 0, wire.ENGINE: "simulation", wire.RUN: "{}"}
    return NodeRequest.of(kind, {**core, **asked}, config, where)


def content(**more: Any) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord(), "knowledge": ArrayRecord(), **more})


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [(one.name, kind, key.name) for one in ours() for kind in ("train", "evaluate") for key in getattr(one, kind)],
)
def test_a_declared_key_has_a_rule_and_another_kind_of_message_has_it_not(name: str, kind: str, key: str) -> None:
    """In a run that asks for none of it no value is allowed, and each is refused in words."""
    for value in (True, 1, "x", [], ["loss", "train"], ["a", "a"], [1.5], None):
        asked = {"domains": [], key: value} if kind == "evaluate" else {key: value}
        if key == wire.FIGURES and value is True:  # which every run has, unless it is switched off
            requests.check(request(kind, asked), content())
        else:
            assert refusal_of(FedShiftError, requests.check, request(kind, asked), content())
    other = {"train": "evaluate", "evaluate": "train"}[kind]
    if key not in {one.name for one in declared(name, other)}:
        text = refusal_of(FedShiftError, requests.check, request(other, {key: True}), content())
        assert f"a message to {other} has no such key" in text


def test_under_noise_no_number_of_a_feature_leaves_a_node() -> None:
    """Each number that tells of images is taken out of the reply, whoever put it there."""
    config = resolve({"set": "privacy.name=local-dp model.name=cnn"})
    weights = {"w": np.zeros(3, np.float32)}
    numbers: Any = {key.name: 1 for one in ours() for key in one.train_reply} | {"gift": 1, "loss": 1.0}
    made = client("privacy", config=config)
    half = next(half for _, half in made.features._all if half.name == "privacy")
    call = replace(made._call(shared(made), {}), sent=weights)
    reply = half.on_train(call, lambda call: Reply(1, numbers, weights, {}))
    assert set(reply.metrics) == {wire.SECONDS, wire.PROCESS}
    assert not any(one.tells for one in ours() if {wire.SECONDS, wire.PROCESS} & {key.name for key in one.train_reply})
