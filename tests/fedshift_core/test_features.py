"""Features: what each declares is all that it sends, on either side, and nobody takes in anything else."""

import functools
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ASKED_FOR, federation, image_set, new_client, node_features, phase, refusal_of, scored, shared
from support import node as node_of

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import AggregationConfig, EvaluateConfig, RunConfig
from fedshift_app.features.validation.node import ValidationOnNode
from fedshift_app.flower.internals import identify_process
from fedshift_app.node import requests
from fedshift_app.node.data import Place
from fedshift_app.node.requests import NodeRequest
from fedshift_clients import features as node_halves
from fedshift_clients.base import DomainClient
from fedshift_clients.features import About, Call, Next, NodeFeature, Reply
from fedshift_core.errors import FederationError, FedShiftError
from fedshift_core.features import CORE as DECLARED
from fedshift_core.features import FEATURES, KINDS, Feature, Key, ours, shared_name
from fedshift_core.limits import Refused
from fedshift_core.params import Params
from fedshift_core.registry import imported
from fedshift_core.wire import names as wire
from fedshift_core.wire.records import encode
from fedshift_datasets.base import Source
from fedshift_strategies.features.base import Scoring, ServerFeature, Training
from fedshift_strategies.features.catalog import Around, Features
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.context import RunContext
from fedshift_strategies.federation.evaluation import Evaluation

DOMAINS = ("a", "b")
NAMES = [feature.name for feature in ours()]
#: Names that each kind of message has without any feature.
CORE = {
    "train": requests.ALLOWED["train"], "evaluate": requests.ALLOWED["evaluate"],
    "train_reply": (wire.NUM_EXAMPLES, wire.LOSS, f"{wire.LOSS_TERM}ce", wire.KEPT, wire.STARTED_ANEW),
    "evaluate_reply": (
        wire.NUM_EXAMPLES, wire.KEPT, wire.STARTED_ANEW, *(f"{name}a" for name in (wire.CORRECT, wire.COUNT)),
        f"{wire.LOSS_SUM}a", f"{wire.OTHER_CORRECT}global/a",
    ),
    "introduction": (
        wire.CLASS_COUNTS, wire.NUM_TEST, wire.SHARED_TEST, wire.PARTITION_ID, wire.NUM_PARTITIONS, wire.FASTEST,
        wire.DOMAIN, f"{wire.UNHELD_TEST}a",
    ),
    "query": requests.ALLOWED["query"], "query_reply": (),
    "records": (wire.ARRAYS, wire.CONFIG, wire.METRICS, wire.START),
}  # fmt: skip


def declared(name: str, *kinds: str) -> list[Key]:
    return [key for kind in kinds for key in getattr(FEATURES[name], kind)]


def strange(sent: Iterable[str], name: str, *kinds: str) -> list[str]:
    """Return the names that the feature does not declare for these kinds of messages."""
    return [one for one in sent if not any(key.fits(one) for key in declared(name, *kinds))]


# --- the declarations --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_core_declares_its_names(kind: str) -> None:
    keys = getattr(DECLARED, kind)
    assert [name for name in CORE[kind] if not any(key.fits(name) for key in keys)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_features_and_no_part_of_the_core_share_a_name(kind: str) -> None:
    keys = [key for feature in ours() for key in getattr(feature, kind)]
    for key in keys:
        example = f"{key.name}own/a" if key.name.endswith(("/", "=")) else key.name
        assert [one.name for one in keys if one.fits(example)] == [key.name]
        assert key.holds and key.meaning
    assert not [name for name in CORE[kind] if any(key.fits(name) for key in keys)]


def test_a_name_that_two_features_declare_is_found() -> None:
    assert shared_name(ours()) == ""
    for kind, name in (("train", wire.GAP), ("evaluate_reply", "other-correct/bn=own/"), ("records", wire.COUNTS)):
        assert shared_name((*ours(), Feature("mine", "", "", **{kind: (Key(name, "", ""),)}))) == name  # type: ignore[arg-type]
    assert shared_name((*ours(), Feature("mine", "", "", evaluate=(Key(wire.GAP, "", ""),)))) == ""


def test_a_name_that_is_followed_by_something_fits_by_its_beginning_and_others_whole() -> None:
    assert Key("count/", "int", "").fits("count/a") and Key("way=", "int", "").fits("way=own/a")
    assert not Key("count", "int", "").fits("count/a") and Key("count", "int", "").fits("count")


@pytest.mark.parametrize("feature", ours(), ids=NAMES)
def test_each_feature_has_a_key_and_classes_of_its_side(feature: Feature) -> None:
    assert FEATURES[feature.name] is feature and feature.title and feature.option
    assert feature.server or feature.node
    if feature.server:
        assert issubclass(imported(feature.server), ServerFeature)
    if feature.node:
        assert issubclass(imported(feature.node), NodeFeature)
    assert feature.node or not any(getattr(feature, kind) for kind in KINDS)
    assert feature.params is Params
    section, _, key = feature.option.partition("=")[0].partition(".")
    config = resolve({"experiment": "handwritten"})
    assert hasattr(getattr(config, section), key) if key else hasattr(config, section)


# --- the server --------------------------------------------------------------------------------------

RULES = st.sampled_from([{}, {"weights": "ga"}, {"weights": "ga", "gap": "accuracy", "gap_on": "validation"}])
WAYS = st.sampled_from([("averaged",), ("retaken",), ("averaged", "retaken", "own", "batch"), ("batch", "own")])
RUNS = st.fixed_dictionaries({
    "aggregation": RULES.map(lambda rule: AggregationConfig(**rule)),
    "evaluate": st.builds(
        lambda bn, figures, clients, test, fraction: EvaluateConfig(
            bn=bn, figures=figures, client_models=clients, test=test, fraction=fraction
        ),
        WAYS, st.booleans(), st.sampled_from(["off", "last", "every"]), st.booleans(), st.sampled_from([1.0, 0.5]),
    ),
    "profile": st.booleans(), "validation_fraction": st.sampled_from([0.0, 0.2]), "rounds": st.sampled_from([1, 9]),
    "label_mix": st.sampled_from(["as_training", "own"]), "batchnorms": st.sampled_from([(), ("encoder.1",)]),
})  # fmt: skip


def runs(given: Mapping[str, Any]) -> RunContext:
    return federation(domains=DOMAINS, **given)


@given(RUNS, st.booleans(), st.booleans())
@settings(max_examples=40)
def test_a_server_asks_and_allows_what_its_features_declare(run: dict[str, Any], shared_test: bool, test: bool) -> None:
    context = runs(run)
    nodes = [node_of(i, (5,), d, 9, shared_test=shared_test, num_validation=4) for i, d in enumerate(DOMAINS)]
    arrays = encode({"encoder.1.running_mean": np.zeros(3, np.float32)})
    for feature in Features(context):
        kept = feature.name
        asked: list[dict[str, Any]] = []

        def ask(work: Any, options: dict[str, Any], asked: list[dict[str, Any]] = asked) -> list[Message]:
            asked.append(options)
            return []

        training, scoring = phase(Training, nodes, present=nodes), phase(Scoring, nodes, weights=arrays, ask=ask)
        trains = Around([(kept, feature.on_round(training))])
        scores = Around()
        with suppress(FederationError):  # nobody answers here
            scores = Around([(kept, feature.on_scores(scoring))])
        assert bool(asked) == (feature.name == "bn-statistics" and "bn=retaken" in run_scores(context))
        scoring.evaluation = context.evaluation(1, nodes, extras=scores.asked)
        assert not any(strange(request, kept, "evaluate") for request in asked)
        for of_feature in scores.asked.values():
            assert not strange((*of_feature.reads, *of_feature.records), kept, "records")
            others = [f"{wire.OTHER_CORRECT}{name}/{domain}" for name in of_feature.others for domain in DOMAINS]
            assert not strange(others, kept, "evaluate_reply")
        for node in nodes:
            assert not strange(trains.options(node), kept, "train")
            assert not strange(trains.bounds(node), kept, "train_reply")
            assert not strange(scores.options(node), kept, "evaluate")
            assert not strange(scores.bounds(node), kept, "evaluate_reply")


def run_scores(run: RunContext) -> set[str]:
    """Return the scores with statistics of BatchNorm that a run has."""
    return {f"bn={way}" for way in run.config.evaluate.bn if way != "retaken" or run.model.batchnorms}


GIFTS = st.text(min_size=1, max_size=30).filter(
    lambda name: (
        not any(key.fits(name) for one in ours() for kind in KINDS for key in getattr(one, kind))
        and not name.startswith((wire.SCALAR, wire.LOSS_TERM))
        and name not in {*chain.from_iterable(CORE.values())}
    )
)


@given(RUNS, GIFTS)
@settings(max_examples=25)
def test_a_server_takes_no_number_and_no_record_that_nobody_declares(run: dict[str, Any], gift: str) -> None:
    identify_process()
    context, node = runs(run), node_of(0, (5,), "a", 9, shared_test=False, num_validation=4)
    features, training = Features(context), phase(Training, [node], present=[node])
    bounds = Around((each.name, each.on_round(training)) for each in features).bounds(node)
    assert "unknown metric" in refusal_of(Refused, checks.trained, {wire.NUM_EXAMPLES: 5, gift: 1}, 5, ("ce",), bounds)
    for content, reason in (
        (RecordDict({"metrics": MetricRecord({gift: 1})}), "unknown metric"),
        (RecordDict({"metrics": MetricRecord({"correct/a": 1}), gift: encode({})}), "unknown record"),
    ):
        scoring = phase(Scoring, [node])
        asked = (each.on_scores(scoring) for each in features if each.name != "bn-statistics")  # it asks at once
        around = Around((str(place), steps) for place, steps in enumerate(asked))
        evaluation = scoring.evaluation = Evaluation(DOMAINS, [node], personal=False, extras=around.asked)
        evaluation.first()
        reply = Message(content, reply_to=Message(RecordDict({"arrays": ArrayRecord()}), node.node_id, "evaluate"))
        ((left_out, why),) = evaluation.read([reply])
        assert left_out == node and why.startswith(reason)


# --- the node ----------------------------------------------------------------------------------------


ASKED: dict[str, Any] = {
    "server-round": 1, "domains": ["a"], "gap": ["loss", "train"], "local-domains": ["a"], "figures": True,
    "site-figures": True, "ask-loss": True,
    "validation": True, "bn-ways": ["averaged", "own", "batch"], "bn-images": 10,
}  # fmt: skip


def client(*names: str, config: RunConfig | None = None, model: str = "cnn_bn") -> DomainClient:
    """Return a client with features of these names, of a run where they need one."""
    made = new_client(
        DomainClient,
        model=model,
        test_set=lambda domain: image_set(11),
        own_sets={"validation": image_set(5), "test": image_set(4)},
        epochs=1,
    )
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
    wanted = {kind: {key.name for feature in ours() for key in getattr(feature, kind)} for kind in KINDS}
    for kind in ("introduction", "train_reply", "evaluate_reply"):
        assert sent[kind] == wanted[kind]
    from_server = {wire.STATISTICS, wire.SITE_IMAGES, wire.IMAGE_STYLES}
    assert sent["records"] == wanted["records"] - from_server


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
    works = made.fit if hook == "on_train" else made.evaluate
    assert refusal_of(FedShiftError, works, shared(made), ASKED) == (
        "the feature validation would send 'gift', which it does not declare"
    )


def test_what_is_off_is_not_built_and_what_is_on_stands_in_the_order_of_its_place() -> None:
    """A feature that protects a reply is outermost: nothing is added outside it; what measures is in the weights."""
    text = "federation.secure_sums=true evaluate.bn=[averaged,own] model.name=cnn_bn statistics.share=off"
    on = node_halves.of(resolve({"experiment": "handwritten", "profile": True, "set": text}))
    names = [half.name for _, half in on._all]
    assert names == ["secure-sums", "profile", "", "bn-statistics", "figures", "site-figures"]
    everything = [half.name for _, half in node_features(*NAMES)._all]
    assert everything[:5] == ["secure-sums", "privacy", "profile", "statistics", ""]
    assert [half.name for _, half in node_halves.Features()._all] == [""]


@functools.cache
def fedavg_run() -> RunConfig:
    return resolve({"experiment": "handwritten", "method": "fedavg"})


def request(kind: str, asked: Mapping[str, Any]) -> NodeRequest:
    config = fedavg_run()
    where = Place(config.dataset.domains[0], 0, 4, Source(None), shared=True, threads=1)
    core = {wire.SERVER_ROUND: 1, wire.NODE_INDEX: 0, wire.ENGINE: "simulation", wire.RUN: "{}"}
    return NodeRequest.of(kind, {**core, **asked}, config, where)


def content(**more: Any) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord(), "knowledge": ArrayRecord(), **more})


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_node_refuses_a_key_and_a_record_that_nobody_declares(kind: str) -> None:
    plain: dict[str, Any] = {"domains": []} if kind == "evaluate" else {}
    requests.check(request(kind, plain), content())

    @given(GIFTS)
    @settings(max_examples=25)
    def refuses(gift: str) -> None:
        assert f"a message to {kind} has no such key" in refusal_of(
            FedShiftError, requests.check, request(kind, {**plain, gift: 1}), content()
        )
        assert f"a message to {kind} has no record" in refusal_of(
            FedShiftError, requests.check, request(kind, plain), content(**{gift: encode({})})
        )

    refuses()


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
    if key in {one.name for one in declared(name, other)}:
        return
    assert f"a message to {other} has no such key" in refusal_of(
        FedShiftError, requests.check, request(other, {key: True}), content()
    )


def test_a_feature_that_tells_of_images_has_a_word_for_it() -> None:
    assert [one.name for one in ours() if bool(one.tells) != (one.word is not None)] == []


def test_under_noise_no_number_of_a_feature_leaves_a_node() -> None:
    """Each number that tells of images is taken out of the reply, whoever put it there."""
    config = resolve({"set": "privacy.name=local-dp model.name=cnn"})
    weights = {"w": np.zeros(3, np.float32)}
    numbers: dict[str, Any] = {key.name: 1 for one in ours() for key in one.train_reply} | {"gift": 1, "loss": 1.0}
    made = client("privacy", config=config)
    (half,) = [half for _, half in made.features._all if half.name == "privacy"]
    call = replace(made._call(shared(made), {}), sent=weights)
    reply = half.on_train(call, lambda call: Reply(1, numbers, weights, {}))
    assert set(reply.metrics) == {wire.SECONDS, wire.PROCESS}
    assert not any(one.tells for one in ours() if {wire.SECONDS, wire.PROCESS} & {key.name for key in one.train_reply})
