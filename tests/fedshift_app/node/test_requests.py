"""A real node does what the run's configuration asks for, whatever a message says: its app, called directly."""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from support import InlineRun, ListeningGrid

from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app import client_app, server_app
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import identify_process, make_context
from fedshift_app.node import data as node_data
from fedshift_app.node import pins, requests, setup, state_folder
from fedshift_app.run import build as run_build
from fedshift_core.arrays import Arrays
from fedshift_core.features import ours
from fedshift_core.wire import names
from fedshift_core.wire.records import decode, encode

SHORT = "train.epochs=1 dataset.domains=[scan,sketch]"
BN = "model.name=cnn_bn"
DP = "privacy.name=local-dp privacy.clipping_norm=0.5 privacy.epsilon=8"
EVERY = {names.RUN_ID: "a" * 32, names.NODE_INDEX: 0, names.ENGINE: "deployment"}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[NodeFolder]:
    """Return the images of two real nodes, 180 to train on and 90 to test on each."""
    config = resolve({"set": f"{SHORT} allocation.share=0.2"})
    return exporting.export(config, 2, tmp_path_factory.mktemp("real") / "nodes")


class RealNode:
    """A SuperNode's app and its state; the server asks what it likes."""

    def __init__(self, folder: NodeFolder, given: str = "", method: str = "fedavg", rounds: int = 10) -> None:
        identify_process()
        self.config = resolve({"method": method, "rounds": rounds, "set": f"{SHORT} {given}"})
        self.run = self.config.model_dump_json()
        self.domain = folder.domain
        # Its owner allows all: what is tried here is the run's configuration.
        given_to_node = {"domain": folder.domain, "data-dir": str(folder.path), "policy": "open"}
        self.context: Context = make_context(7, given_to_node, {})

    @functools.cached_property
    def weights(self) -> Arrays:
        return decode(run_build.prepare(self.config, "deployment")[0])

    def ask(self, kind: str, server_round: Any = 1, records: dict[str, Any] | None = None, **more: Any) -> Message:
        given: dict[str, Any] = EVERY | {names.RUN: self.run, names.SERVER_ROUND: server_round}
        given |= {key.replace("_", "-"): value for key, value in more.items()}
        kept = {key: value for key, value in given.items() if value is not None}
        content = RecordDict({"arrays": encode(self.weights), "knowledge": ArrayRecord(), "config": ConfigRecord(kept)})
        content.update(records or {})
        return client_app.app(Message(content, self.context.node_id, kind), self.context)

    def refused(self, kind: str, server_round: Any = 1, records: dict[str, Any] | None = None, **more: Any) -> str:
        """Return why a message is refused; nothing of an answer may be in the reply."""
        reply = self.ask(kind, server_round, records, **more)
        assert reply.has_error(), dict(reply.content)
        reason = str(reply.error.reason)
        assert reason.startswith("refused: ") and "\n" not in reason, reason
        return reason

    def answers(self, kind: str, server_round: int = 1, **more: Any) -> RecordDict:
        reply = self.ask(kind, server_round, **more)
        assert not reply.has_error(), reply.error.reason
        return reply.content


@pytest.fixture
def real(folders: list[NodeFolder]) -> Any:
    return lambda given="", **more: RealNode(folders[0], given, **more)


SCORE: dict[str, Any] = {"domains": ["scan"], "drawn": [90]}


def test_what_an_honest_server_asks_is_answered(real: Any) -> None:
    node = real()
    node.answers("query")
    assert node.answers("train")["metrics"]["num-examples"]
    answer = node.answers("evaluate", **SCORE, figures=True)
    assert answer["metrics"]["count/scan"] == 90
    assert "counts" in answer


# --- what the configuration does not ask for ---------------------------------------------------------


@pytest.mark.parametrize("given", ["", DP])
@pytest.mark.parametrize(
    "more",
    [
        {"gap": ["loss", "train"]}, {"gap": ["accuracy", "train"]}, {"gap": ["", ""]}, {"gap": 1},
        {"local_domains": ["scan"]}, {"local_domains": []}, {"local_domains": "scan"},
        {"take_statistics": True, "bn_images": 2}, {"figures": True}, {"domains": ["scan"]}, {"validation": True},
    ],
    ids=str,
)  # fmt: skip
def test_training_tells_nothing_besides(given: str, more: dict[str, Any], real: Any) -> None:
    assert f"sends {next(iter(more)).replace('_', '-')}=" in real(given).refused("train", **more)


@pytest.mark.parametrize(
    ("given", "more", "why"),
    [
        ("aggregation.weights=ga", {"gap": ["accuracy", "train"]}, "aggregation.gap=loss, aggregation.gap_on=train"),
        ("aggregation.weights=ga", {"gap": ["loss", "validation"]}, "aggregation.gap_on=train"),
        ("evaluate.client_models=last", {"local_domains": ["scan"]}, "client_models=last (rounds=10, evaluate.last=5)"),
        ("evaluate.client_models=every", {"local_domains": ["sketch"]}, "this node holds scan"),
        ("evaluate.client_models=every", {"local_domains": ["scan", "scan"]}, "each to be named once"),
    ],
)
def test_training_tells_what_is_configured_as_it_is(given: str, more: Any, why: str, real: Any) -> None:
    node = real(given)
    assert why in node.refused("train", **more)
    request = {"gap": ["loss", "train"]} if "ga" in given else {"local_domains": ["scan"]}
    metrics = node.answers("train", 10, **request)["metrics"]
    assert any(name.startswith("local-") for name in metrics)


@pytest.mark.parametrize("images", [1, 2, 999, 1001, 10**6, True, "1000", None])
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


def test_a_node_with_one_image_tells_no_sums(folders: list[NodeFolder], real: Any, monkeypatch: Any) -> None:
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
        ("", {"starts": [7], "stops": [8]}, "parts of test sets are for simulations alone"),
        ("", {"starts": [0], "stops": [90]}, "parts of test sets are for simulations alone"),
        ("", {"drawn": [1]}, "this run scores another share of this node's test images of 'scan'"),
        ("", {"drawn": [89]}, "this run scores another share"),
        ("", {"drawn": [90, 90]}, "one count for each domain"),
        ("", {"drawn": [-1]}, "one count for each domain"),
        ("evaluate.fraction=0.5", {"drawn": [90]}, "this run scores another share"),
        ("evaluate.fraction=0.9 images.eval_batch=42", {"drawn": [84]}, "this run scores another share"),
        ("evaluate.fraction=0.001 images.eval_batch=2", {"drawn": [2]}, "fewer than 16 images tells of single ones"),
        ("", {"domains": ["sketch"]}, "this node holds scan"),
        ("", {"domains": ["scan", "scan"], "drawn": [90, 90]}, "each to be named once"),
        ("", {"domains": None}, "lacks domains"),
        ("evaluate.figures=false", {"figures": True}, "evaluate.figures=false"),
        ("", {"figures": 1}, "evaluate.figures=true"),
        ("", {"validation": True}, "allocation.validation_fraction=0"),
        ("", {"bn_ways": ["own"], "bn_images": 1000}, "evaluate.bn=[averaged]"),
        ("", {"bn_images": 1000}, "evaluate.bn=[averaged]"),
        (f"{BN} evaluate.bn=[averaged,own]", {"bn_ways": ["averaged", "own"], "bn_images": 2}, "bn_images=1000"),
        (f"{BN} evaluate.bn=[averaged,own]", {"bn_ways": ["own"], "bn_images": 1000}, "evaluate.bn=[averaged,own]"),
        (f"{BN} evaluate.bn=[averaged,own]", {}, "without bn-ways"),
        ("evaluate.every=7", {}, "round 1 is not scored"),
        ("evaluate.test=false allocation.validation_fraction=0.2", {}, "evaluate.test=false"),
    ],
)  # fmt: skip
def test_scores_are_those_that_are_configured(given: str, more: Any, why: str, real: Any) -> None:
    assert why in real(given).refused("evaluate", **(SCORE | more))


@pytest.mark.parametrize("given", ["", DP])
def test_a_test_image_cannot_be_read_by_asking_for_it_alone(given: str, real: Any) -> None:
    """202 such questions revealed an image's label and 196 of its grey values."""
    node = real(given)
    for place in range(3):
        single = {"domains": ["scan"], "starts": [place], "stops": [place + 1]}
        assert "simulations alone" in node.refused("evaluate", **single)
        assert "simulations alone" in node.refused("evaluate", **single, drawn=[90])


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
        {"node_index": -1}, {"node_index": 10**9}, {"node_index": "0"}, {"kept_in": "/tmp/x"}, {"resumed_after": [11]},
        {"resumed_after": [-1]}, {"resumed_after": 3}, {"chosen": ["a"]}, {"memory_round": 11}, {"engine": "inline"},
        {"run_id": 3}, {"start_digest": 3}, {"secret": 1}, {"told/alpha": 1.0}, {"told/": 1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_no_other_keys_and_values(kind: str, more: dict[str, Any], real: Any) -> None:
    assert f"sends {next(iter(more)).replace('_', '-')}=" in real().refused(kind, **more)


def test_a_real_node_plays_no_simulated_one(folders: list[NodeFolder]) -> None:
    """Else the server's words would say which files are read, and parts of test sets would be allowed."""
    for left_out in ("", "domain", "data-dir"):
        node = RealNode(folders[0])
        node.context = make_context(7, {k: v for k, v in node.context.node_config.items() if k != left_out}, {})
        reply = node.ask("evaluate", engine="simulation", domains=["scan"], drawn=[90], starts=[7], stops=[8])
        assert "takes no part in a simulation" in str(reply.error.reason)


def test_scalars_and_knowledge_are_those_of_the_method(real: Any) -> None:
    arrays = encode({"prototypes": np.zeros((1, 64), np.float32), "labels": np.zeros(1, np.int64)})
    assert "knowledge 'prototypes', but the run's method sends nothing" in real().refused(
        "train", records={"knowledge": arrays}
    )
    other = encode({"masks": np.zeros(3)})
    assert "but the run's method sends prototypes, labels" in real(method="fedproc").refused(
        "train", records={"knowledge": other}
    )
    node = real(method="fedproc")
    assert "the run's method tells alpha" in node.refused("train", **{"told/beta": 1.0})
    reply = node.ask("train", records={"knowledge": arrays}, **{"told/alpha": 0.5})
    assert not reply.has_error(), reply.error.reason


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
        assert value is None or value is True or value == 10**18 or reply.has_error() or 0 <= value <= 1e9, (
            name,
            value,
        )


def test_a_scalar_that_is_needed_and_missing_is_named(real: Any) -> None:
    arrays = encode({"prototypes": np.zeros((1, 64), np.float32), "labels": np.zeros(1, np.int64)})
    reply = real(method="fedproc").ask("train", records={"knowledge": arrays})
    assert reply.error.reason == "refused: the server tells no 'alpha', which the method needs"


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
    "change",
    [
        {"privacy": {"name": "none"}}, {"seed": 1}, {"rounds": 11}, {"evaluate": {"client_models": "every"}},
        {"evaluate": {"bn": ["averaged", "retaken"]}},
    ],
    ids=str,
)  # fmt: skip
def test_the_configuration_of_a_run_is_its_first(change: dict[str, Any], real: Any) -> None:
    node = real(f"{DP} {BN} model.bn=local")
    first = node.run
    node.answers("query")
    changed = json.loads(first)
    for key, value in change.items():
        changed[key] = changed[key] | value if isinstance(value, dict) else value
    if changed["evaluate"]["client_models"] != "off" or "retaken" in changed["evaluate"]["bn"]:
        changed["privacy"]["name"] = "none"
    node.run = json.dumps(changed)
    for kind, more in (("train", {}), ("evaluate", SCORE), ("query", {})):
        assert "another configuration within one run" in node.refused(kind, **more)
    node.run = first
    node.answers("train")


def test_a_refused_configuration_is_not_kept(real: Any) -> None:
    node = real()
    honest, node.run = node.run, json.dumps(json.loads(node.run) | {"strange": 1})
    assert "strange" in str(node.ask("train").error.reason)
    node.run = honest
    assert "gap" in node.refused("train", gap=["loss", "train"])
    node.answers("train")


def test_another_run_of_flowers_has_its_own(real: Any) -> None:
    """As one that is resumed, with more rounds: whether in a new context or, as here, in the same."""
    node = real()
    node.answers("train")
    state = node.context.state.config_records[pins.PINS]
    state["flower-run"] = "of before"
    node.run = json.dumps(json.loads(node.run) | {"rounds": 12})
    node.answers("train", 12)
    assert node.context.state.config_records[pins.PINS]["flower-run"] != "of before"


def test_what_auto_precision_has_come_to_is_the_servers_to_say_once(real: Any) -> None:
    node = real("train.precision=auto")
    node.answers("query")
    changed = json.loads(node.run)
    changed["train"]["arithmetic"] = "hardware"
    node.run = json.dumps(changed)
    node.answers("train")


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
    node.__dict__["weights"] = {}
    for kind in ("query", "train", "evaluate"):
        assert "method.repeatable_noise=true serves in simulation only" in str(node.ask(kind).error.reason)


# --- an honest deployment ----------------------------------------------------------------------------

COMPLETE = (
    ("fedavg", "evaluate.fraction=0.5 evaluate.last=1 allocation.validation_fraction=0.2"),
    ("fedavg", f"{BN} evaluate.bn=[averaged,retaken,own,batch] evaluate.client_models=every"),
    ("fedavg", "aggregation.weights=ga"), ("fedcode", ""),
)  # fmt: skip


@pytest.mark.parametrize(("method", "given"), COMPLETE)
def test_no_node_refuses_an_honest_server_which_sends_no_parts(
    method: str, given: str, folders: list[NodeFolder], run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[set[str]] = []

    def nodes(*args: Any) -> Any:
        class Grid(ListeningGrid):
            def pass_on(self, message: Message, reply: Message) -> Message:
                sent.append(set(message.content.config_records["config"]))
                assert not reply.has_error(), reply.error.reason
                return reply

        grid = Grid(*args)
        for i, folder in enumerate(folders):
            given = {"domain": folder.domain, "data-dir": str(folder.path), "partition-id": i}
            grid._contexts[1000 + i] = make_context(1000 + i, given, {})
        return grid

    flat = {"method": method, "rounds": 2, "nodes": 2, "set": f"{SHORT} federation.min_nodes=2 {given}"}
    monkeypatch.setattr(server_app, "_engine", lambda grid: setup.DEPLOYMENT)
    run = run_inline(**flat, grid=nodes)
    assert all(line["nodes"] == [0, 1] and not line.get("left_out") for line in run.rounds)
    assert not any({"starts", "stops"} & keys for keys in sent)
    features = {key.name for feature in ours() for key in (*feature.train, *feature.evaluate)}
    allowed = features.union(*requests.ALLOWED.values())
    assert all(key in allowed or key.startswith("told/") for keys in sent for key in keys)
