"""Runs with secure sums: the same weights as without, whoever is lost; what a message may ask; what does not fit."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MessageType
from safetensors.numpy import load_file
from scipy import stats
from support import InlineRun, ListeningGrid, Run, load_benchmark, refusal_of

from fedshift.lab.grid.costs import dry_run
from fedshift.run.launch import runner
from fedshift_app.config import fits, registry
from fedshift_app.config.resolving import resolve
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.params import Params
from fedshift_core.secure.recovery import traffic
from fedshift_core.wire import names
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import refuse_sums
from fedshift_strategies.federation.updates import Update

SHORT = "train.epochs=1 allocation.share=0.05 evaluate.figures=false train.precision=float32"
ON = f"{SHORT} federation.secure_sums=on"
MORE = "allocation.share=0.1"  # with which each class has three holders
RETAKEN = "model.name=cnn_bn evaluate.bn=[retaken,averaged]"
ROUNDING = 2.0**-22  # of float32 numbers near 1, on top of the bound
Change = Callable[[Message, Message], Message | None]


def kept(run: Run, stem: str) -> Arrays:
    files = sorted((run.folder / "checkpoint").glob(f"{stem}-*.safetensors"))
    return load_file(files[-1]) if files else {}


def distance(first: Arrays, second: Arrays) -> float:
    assert first.keys() == second.keys()
    return max((float(np.abs(first[n].astype(float) - second[n]).max()) for n in first if first[n].size), default=0.0)


def listening(change: Change) -> Any:
    class Grid(ListeningGrid):
        def pass_on(self, message: Message, reply: Message) -> Message | None:
            return change(message, reply)

    return Grid


def stage_of(message: Message) -> str:
    config = message.content.config_records["config"]
    kind = message.metadata.message_type
    if kind == MessageType.EVALUATE and names.TAKE_STATISTICS in config:
        return "answers"
    stage = str(config.get(names.SECURE_STAGE, "train" if kind == MessageType.TRAIN else "other"))
    return stage if config.get(names.SECURE_PURPOSE, "training") == "training" else f"answers/{stage}"


def index_of(message: Message) -> int:
    return int(str(message.content.config_records["config"].get(names.NODE_INDEX, -1)))


def losing(lost: Iterable[tuple[str, int]], seen: list[Arrays] | None = None) -> Any:
    """Return a grid that loses the replies of nodes at stages."""
    pairs = {*lost}

    def change(message: Message, reply: Message) -> Message | None:
        stage = stage_of(message)
        if stage == "train" and seen is not None and not reply.has_error():
            seen.append({name: np.array(a) for name, a in decode(reply.content.array_records["arrays"]).items()})
        if (stage, index_of(message)) in pairs:
            return Message(Error(code=2, reason="lost on the way"), reply_to=message)
        return reply

    return listening(change)


def ending(run_inline: InlineRun, **flat: Any) -> str:
    """Return the line with which a run ends; how it goes on comes after it."""
    with pytest.raises(FederationError) as caught:
        run_inline(**flat)
    return str(caught.value).splitlines()[0]


# --- the same result ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "more"),
    [
        pytest.param("fedavg", "model.name=cnn_bn", id="weights"),
        pytest.param("fedproto", MORE, id="prototypes by images"),
        pytest.param(
            "fedproto", f"method.prototype_mean=plain {MORE}", id="prototypes by nodes", marks=pytest.mark.long
        ),
        pytest.param("scaffold", "", id="totals"),
        pytest.param("feddyn", "method.alpha=0.1", id="state of the server"),
        pytest.param("fedthe", "", id="mean features", marks=pytest.mark.long),
        pytest.param("f2dc", "", id="domain-aware weights", marks=pytest.mark.long),
        pytest.param("fedbn", "", id="private parts", marks=pytest.mark.long),
    ],
)
def test_a_secure_sum_is_the_plain_one_within_the_bound(method: str, more: str, run_inline: InlineRun) -> None:
    plain = run_inline(method=method, rounds=1, set=f"{SHORT} {more}")
    secure = run_inline(method=method, rounds=1, set=f"{ON} {more}")
    shown = secure.rounds[0]["secure_sums"]
    assert (shown["nodes"], shown["threshold"]) == (4, 3) and 0 < shown["error"] < 1e-6
    weights = kept(plain, "weights")
    assert distance(kept(secure, "weights"), weights) <= shown["error"] + ROUNDING
    assert weights or method == "fedproto"
    for stem in ("knowledge", "state"):
        # Contributions are not weighed by the node: their mean is over as many as hold a class, one at least.
        assert distance(kept(secure, stem), kept(plain, stem)) <= 64 * shown["error"] + ROUNDING
    assert secure.rounds[0]["losses"].keys() == plain.rounds[0]["losses"].keys()
    for name, value in plain.rounds[0]["losses"].items():
        assert secure.rounds[0]["losses"][name] == pytest.approx(value, abs=1e-6)


def test_masks_change_no_bit_in_any_engine(run_inline: InlineRun, tmp_path: Path) -> None:
    """Masks are drawn anew in each run, and cancel; here in one process and in two."""
    given = f"{ON} {RETAKEN} model.bn_keep=retaken"
    first = run_inline(rounds=2, set=given)
    flat = {"experiment": "handwritten", "rounds": 2, "set": given, "output-dir": str(tmp_path / "workers")}
    second = Run(runner.run_inline(flat, 4, 2))
    assert distance(kept(first, "weights"), kept(second, "weights")) == 0
    timeless = [[{k: v for k, v in line.items() if k != "seconds"} for line in run.rounds] for run in (first, second)]
    assert timeless[0] == timeless[1]


def test_the_sum_is_of_the_nodes_that_were_not_lost(run_inline: InlineRun) -> None:
    """One node is lost at each stage from which others are; the sum is that of a run that has only the rest."""
    only = "federation.secure_sums_nodes=2"
    seen: list[Arrays] = []
    grid = losing([("shares", 0), ("train", 3), ("unmask", 4)], seen)
    secure = run_inline(nodes=10, rounds=1, grid=grid, set=f"{ON} {only}")
    assert secure.rounds[0]["nodes"] == [1, 2, 4, 5, 6, 7, 8, 9]
    assert [line.split(":")[0][:6] for line in secure.rounds[0]["left_out"]] == ["node 0", "node 4", "node 3"]
    assert all([*arrays] == ["masked"] for arrays in seen) and len(seen) == 9

    def without(message: Message, reply: Message) -> Message | None:
        if stage_of(message) == "train" and index_of(message) in (0, 3):
            return Message(Error(code=2, reason="lost on the way"), reply_to=message)
        return reply

    plain = run_inline(nodes=10, rounds=1, grid=listening(without), set=SHORT)
    error = secure.rounds[0]["secure_sums"]["error"]
    assert distance(kept(secure, "weights"), kept(plain, "weights")) <= error + ROUNDING


def test_a_reply_holds_noise_and_no_number_of_a_single_node(run_inline: InlineRun) -> None:
    heard: list[Message] = []

    def change(message: Message, reply: Message) -> Message:
        if stage_of(message) == "train":
            arrays = decode(reply.content.array_records["arrays"])["masked"]
            assert stats.chisquare(np.bincount(arrays >> 24, minlength=256)).pvalue > 1e-6
            assert not reply.content.array_records["knowledge"]
            assert {*reply.content.metric_records["metrics"]} <= {"num-examples", "kept"}
            heard.append(reply)
        return reply

    run_inline(method="fedproto", rounds=1, grid=listening(change), set=ON)
    assert len(heard) == 4


# --- nodes that lose their keys, or send false ones ----------------------------------------------------


@pytest.mark.parametrize("stage", ["shares", "train", "unmask"])
def test_a_simulated_node_whose_process_ended_with_its_keys_is_counted_as_lost(
    stage: str, run_inline: InlineRun
) -> None:
    """The sum is of the others, and the run degraded: a worker process was killed, the node did nothing wrong."""

    class Grid(ListeningGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            requests = list(messages)
            for message in requests:
                if stage_of(message) == stage and index_of(message) == 1:
                    self.context_of(message.metadata.dst_node_id).state.clear()
            return super().send_and_receive(requests, timeout=timeout)

    run = run_inline(grid=Grid, rounds=1, set=ON)
    (reason,) = run.rounds[0]["left_out"]
    assert "no fault of its own: this node has no keys of round 1 (training): it has given none, or its" in reason
    assert run.results["lost"] == {"1": [1]}


@pytest.mark.parametrize("false", ["the same twice", "no point", "of another node"])
def test_a_node_that_sends_false_keys_is_named_and_left_out(false: str, run_inline: InlineRun) -> None:
    """The other nodes would refuse a sum with them, and so be left out in its place."""
    others: list[bytes] = []

    def change(message: Message, reply: Message) -> Message:
        if stage_of(message) == "keys":
            config: Any = reply.content.config_records["config"]
            first, second = config[names.SECURE_KEYS]
            if index_of(message) == 0:
                others.append(first)
            if index_of(message) == 3:
                keys = {
                    "the same twice": [first, first], "no point": [b"\x02" + b"\xff" * 48, second],
                    "of another node": [*others, second],
                }  # fmt: skip
                config[names.SECURE_KEYS] = keys[false]
        return reply

    run = run_inline(nodes=5, rounds=1, grid=listening(change), set=ON)
    why = "secure-keys are not two different public keys, with a statement"
    if false == "of another node":
        why = "another node sent the same public key"
    left_out = [0, 3] if false == "of another node" else [3]
    assert run.rounds[0]["nodes"] == [node for node in range(5) if node not in left_out]
    assert [line[:6] for line in run.rounds[0]["left_out"]] == [f"node {node}" for node in left_out]
    assert all(line.endswith(f"secure sums: {why}") for line in run.rounds[0]["left_out"])


# --- BatchNorm's statistics --------------------------------------------------------------------------


@dataclass
class Heard:
    """What passes a run's grid.

    Attributes:
        weights: The weights that are scored.
        statistics: BatchNorm's, as they are sent to be scored with.
        answers: Of replies in place of scores: the names of numbers, and the masked vector; empty where it is none.
    """

    weights: Arrays = field(default_factory=dict)
    statistics: Arrays = field(default_factory=dict)
    answers: list[tuple[set[str], Any]] = field(default_factory=list)


def hearing(heard: Heard, lost: Collection[tuple[str, int]] = ()) -> Any:
    def change(message: Message, reply: Message) -> Message | None:
        if (stage_of(message), index_of(message)) in lost:
            return Message(Error(code=2, reason="lost on the way"), reply_to=message)
        if stage_of(message) == "answers" and not reply.has_error():
            assert {*reply.content} == {"knowledge", "metrics"}
            arrays = decode(reply.content.array_records["knowledge"])
            numbers = {*reply.content.metric_records["metrics"]}
            heard.answers += [(numbers, arrays.get("masked", np.zeros(0)).copy())]
        if names.STATISTICS in message.content.array_records:
            heard.statistics = decode(message.content.array_records[names.STATISTICS])
            heard.weights = decode(message.content.array_records["arrays"])
        return reply

    return listening(change)


@pytest.mark.parametrize("rounds", [0, 1])
def test_batchnorms_statistics_are_those_of_all_nodes_within_the_bound(rounds: int, run_inline: InlineRun) -> None:
    plain, secure = Heard(), Heard()
    run_inline(rounds=rounds, grid=hearing(plain), set=f"{SHORT} {RETAKEN}")
    run = run_inline(rounds=rounds, grid=hearing(secure), set=f"{ON} {RETAKEN}")
    shown = run.rounds[0]["secure_sums"]
    assert (shown["answers"]["nodes"], shown["answers"]["threshold"]) == (4, 3) and ("error" in shown) == bool(rounds)
    assert {*plain.statistics} == {*secure.statistics} and plain.statistics
    near = 1e-5 if rounds else 0.0  # after a round the weights, too, are only as equal as rounding lets them be
    of_mean, of_square = shown["answers"]["error"], shown["answers"]["error"] * 64
    for name, mean in plain.statistics.items():
        if not name.endswith("running_mean"):
            continue
        variance, layer = name.replace("_mean", "_var"), name.removesuffix("running_mean")
        unit = np.sqrt(np.maximum(plain.weights[layer + "running_var"].astype(float), 1e-5))
        m = np.abs(mean - plain.weights[name].astype(float)) / unit
        bound = (of_mean + near) * unit + ROUNDING * np.abs(mean)
        assert (np.abs(secure.statistics[name] - mean.astype(float)) <= bound).all(), name
        bound = unit**2 * (of_square + 2 * m * of_mean + of_mean**2 + near * (1 + m)) + ROUNDING * (
            plain.statistics[variance] + mean.astype(float) ** 2
        )
        assert (np.abs(secure.statistics[variance] - plain.statistics[variance].astype(float)) <= bound).all(), name


def test_an_answer_of_a_node_is_noise(run_inline: InlineRun) -> None:
    heard = Heard()
    run_inline(rounds=1, grid=hearing(heard), set=f"{ON} {RETAKEN}")
    residues = np.concatenate([vector for _, vector in heard.answers])
    assert [numbers for numbers, _ in heard.answers] == [{"num-examples"}] * 4
    assert stats.chisquare(np.bincount(residues >> 28, minlength=16)).pvalue > 1e-6


def test_statistics_are_those_of_the_nodes_that_were_not_lost(run_inline: InlineRun) -> None:
    only, heard, rest = "federation.secure_sums_nodes=2", Heard(), Heard()
    lost = [("answers/shares", 0), ("answers", 3), ("answers/unmask", 4)]
    secure = run_inline(nodes=10, rounds=0, grid=hearing(heard, lost), set=f"{ON} {RETAKEN} {only}")
    run_inline(nodes=10, rounds=0, grid=hearing(rest, [("answers", 0), ("answers", 3)]), set=f"{SHORT} {RETAKEN}")
    shown = secure.rounds[0]["secure_sums"]["answers"]
    assert (shown["nodes"], shown["threshold"]) == (8, 7) and [line[:6] for line in secure.rounds[0]["left_out"]] == [
        "node 0",
        "node 3",
        "node 4",
    ]
    assert distance(heard.statistics, rest.statistics) <= 1e-4  # of variances up to about 10, in units of 64 squared


@pytest.mark.parametrize("stage", ["answers/keys", "answers/shares", "answers"])
def test_statistics_of_too_few_nodes_are_refused(stage: str, run_inline: InlineRun) -> None:
    grid = hearing(Heard(), [(stage, 0), (stage, 1)])
    text = ending(run_inline, rounds=0, grid=grid, set=f"{ON} {RETAKEN}")
    assert text.startswith("round 0: secure sums: 2 ") and "3 are needed" in text


def _again(config: ConfigRecord) -> None:
    """Ask for keys of the sum of training once more, in place of those of the second sum."""
    config[names.SECURE_PURPOSE] = "training"


def _scores(config: ConfigRecord) -> None:
    """Ask for scores with the shares of a sum."""
    del config[names.TAKE_STATISTICS], config[names.BN_IMAGES]


@pytest.mark.parametrize(
    ("stage", "change", "says"),
    [
        pytest.param("answers", lambda config: config.pop(names.SECURE_TEXTS), "lacks secure-texts", id="plain"),
        pytest.param("answers/keys", _again, "what is in a sum leaves a node once", id="again"),
        pytest.param("answers/shares", _again, "comes once, in its order", id="another sum"),
        pytest.param("answers/keys", lambda config: config.update({names.SECURE_PURPOSE: "x"}),
                     "there are training, answers", id="unknown"),
        pytest.param("answers", _scores, "asks for nothing that can be summed", id="scores"),
    ],
)  # fmt: skip
def test_a_node_refuses_a_question_that_would_not_hide_its_answer(
    stage: str, change: Callable[[ConfigRecord], Any], says: str, run_inline: InlineRun
) -> None:
    refused: list[str] = []

    class Grid(ListeningGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            requests = list(messages)
            changed = [stage_of(message) == stage for message in requests]
            for message, other in zip(requests, changed, strict=True):
                if other:
                    change(message.content.config_records["config"])
            replies = super().send_and_receive(requests, timeout=timeout)
            refused.extend(reply.error.reason for reply, other in zip(replies, changed, strict=True) if other)
            return replies

    ending(run_inline, rounds=1, grid=Grid, set=f"{ON} {RETAKEN}")
    assert len(refused) == 4 and all(says in reason for reason in refused)


def test_noise_in_single_steps_goes_with_secure_sums(run_inline: InlineRun) -> None:
    """Each node says what it has spent, as without secure sums; no other number of training leaves it."""
    heard: list[set[str]] = []

    def change(message: Message, reply: Message) -> Message:
        if stage_of(message) == "train" and not reply.has_error():
            heard.append({*reply.content.metric_records["metrics"]} - {"kept"})
        return reply

    run = run_inline(
        rounds=2, grid=listening(change), set=f"{ON} privacy.name=dp-sgd privacy.noise_multiplier=1 model.name=cnn"
    )
    assert [line["nodes"] for line in run.rounds] == [[0, 1, 2, 3]] * 2
    assert heard == [{"num-examples", "epsilon"}] * 8


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["keys", "shares", "train"])
def test_a_round_with_too_few_nodes_is_refused(stage: str, run_inline: InlineRun) -> None:
    grid = losing([(stage, 0), (stage, 1)])
    text = ending(run_inline, rounds=1, grid=grid, set=ON)
    assert text.startswith("round 1: secure sums: 2 ") and "3 are needed" in text
    assert stage != "train" or "node 0 (scan), node 1 (texture): lost on the way" in text


def test_too_few_nodes_for_any_round_are_refused_before_the_first(run_inline: InlineRun) -> None:
    text = ending(run_inline, rounds=1, nodes=4, set=f"{ON} federation.participation=0.5")
    assert "needs 3 nodes or more in each round (federation.secure_sums_nodes), found 2" in text


def test_a_node_that_lies_about_its_share_is_named_and_the_round_goes_on(run_inline: InlineRun) -> None:
    def change(message: Message, reply: Message) -> Message:
        if stage_of(message) == "unmask" and index_of(message) == 2:
            record = reply.content.config_records["config"]
            shares: Any = record[names.SECURE_REVEALED]
            record[names.SECURE_REVEALED] = [shares[1], *shares[1:]]
        return reply

    run = run_inline(rounds=1, grid=listening(change), set=ON)
    assert run.rounds[0]["nodes"] == [0, 1, 2, 3]
    assert run.rounds[0]["left_out"] == [
        "node 2 (street): secure sums: its share of node 0 is not the one that node 0 committed to; its shares are not "
        "used, its vector is"
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(lambda record: record.pop(names.SECURE_TEXTS), "lacks secure-texts", id="no shares"),
        pytest.param(lambda record: record.update({names.SECURE_SUMS: ["prototypes=total"]}), "has no sums", id="sums"),
        pytest.param(lambda record: record.update({names.SECURE_NODES: ["1"]}), "a list of int", id="type"),
        pytest.param(lambda record: record.update({names.SERVER_ROUND: 2}), "comes once, in its order", id="replay"),
    ],
)
def test_a_node_refuses_a_message_to_train_that_would_not_hide_it(
    change: Callable[[ConfigRecord], Any], says: str, run_inline: InlineRun
) -> None:
    class Grid(ListeningGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            requests = list(messages)
            for message in requests:
                if stage_of(message) == "train":
                    change(message.content.config_records["config"])
            return super().send_and_receive(requests, timeout=timeout)

    text = ending(run_inline, rounds=3, grid=Grid, set=ON)
    assert says in text and "0 of 4 nodes delivered" in text


def test_what_is_no_vector_of_the_round_is_left_out(run_inline: InlineRun) -> None:
    def change(message: Message, reply: Message) -> Message:
        if stage_of(message) == "train" and index_of(message) == 1:
            reply.content["arrays"] = encode({"masked": np.zeros(3, np.uint32)})
        return reply

    run = run_inline(rounds=1, grid=listening(change), set=ON)
    assert run.rounds[0]["nodes"] == [0, 2, 3]
    (reason,) = run.rounds[0]["left_out"]
    assert "node 1 (texture): the vector of a secure sum: masked has shape (3,) and type uint32, expected" in reason


def test_a_message_of_secure_sums_is_refused_where_the_run_has_none(run_inline: InlineRun) -> None:
    class Grid(ListeningGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            requests = list(messages)
            for message in requests:
                if stage_of(message) == "train":
                    message.content.config_records["config"][names.SECURE_TERMS] = ["loss"]
            return super().send_and_receive(requests, timeout=timeout)

    text = ending(run_inline, rounds=1, grid=Grid, set=SHORT)
    assert "but this run has federation.secure_sums=false" in text


def test_a_change_out_of_range_leaves_the_node_and_says_why(run_inline: InlineRun) -> None:
    text = ending(run_inline, rounds=1, set=f"{ON} federation.secure_sums_range=1e-6")
    assert "allowed is -1e-06 to 1e-06 (federation.secure_sums_range" in text


# --- which configurations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("method=fedheal", "does not fit 'fedheal': its own rule (weights, merge) reads the weights of each node"),
        ("method=copa", "its own rule (merge_knowledge) reads"),
        ("method=fpl", "it needs prototypes, counts of each node"),
        ("method=fedpac", "it needs class-features, variance of each node"),
        ("method=fediir", "it needs head-gradient of each node"),
        ("method=scaffold method.option=I", "delta-c has a part of each class, of which no count says how many nodes"),
        ("method=ga", "aggregation.weights=ga"),
        (
            "aggregation.robust=median",
            "aggregation.robust=median, which compares the weights of single nodes; allowed is none",
        ),
        (
            "aggregation.weights=ga",
            "sends of each single node mean loss or accuracy on",
        ),
        ("evaluate.client_models=last", "sends of each single node correct predictions on test images; allowed is off"),
        ("method=feddyn aggregation.weights=samples", "allowed are method and equal"),
        ("federation.secure_sums_nodes=1", "secure_sums_nodes"),
    ],
)
def test_what_needs_single_replies_is_refused_before_the_run(given: str, says: str) -> None:
    text = refusal_of(ConfigError, configured, f"{given} federation.secure_sums=on")
    assert says in text and "federation.secure_sums" in text


@pytest.mark.parametrize("given", ["method=fedpac method.combine_heads=false", "method=i2pfl "
                                   "method.inter_proto=average", "privacy.name=local-dp",
                                   "aggregation.weights=equal server.optimizer=fedadam", RETAKEN])  # fmt: skip
def test_what_takes_sums_is_allowed(given: str) -> None:
    assert configured(f"{given} federation.secure_sums=on").federation.secure_sums_nodes == 3


def configured(words: str) -> Any:
    pairs = [word.split("=", 1) for word in words.split()]
    flat = {"experiment": "handwritten"} | {key: value for key, value in pairs if "." not in key}
    return resolve(flat | {"set": " ".join("=".join(pair) for pair in pairs if "." in pair[0])})


class _Reads(DomainStrategy[Params]):
    """A method of another package that has a rule of its own and does not say that sums do."""

    def weights(self, updates: list[Update]) -> list[float]:
        return [1 / len(updates)] * len(updates)


def test_a_method_that_does_not_say_that_sums_do_is_refused() -> None:
    assert _Reads.needs_single(Params()) == "its own rule (weights) reads the weights of each node"
    assert DomainStrategy.needs_single(Params()) == ""


def test_each_sum_that_a_method_declares_is_one_of_what_it_contributes() -> None:
    for method in registry.listed():
        strategy = method.strategy_class()
        fields = method.params_class().model_fields
        params = method.checked_params({k: v for k, v in method.defaults.items() if k in fields})
        assert strategy.sums(params).keys() <= strategy.contributes.keys()
        assert refuse_sums(strategy, strategy.sums(params), method.defaults) == ""
        assert fits.fits_with(method).partition(" ")[0] in ("yes", "no", "with")


# --- the costs ------------------------------------------------------------------------


def test_the_benchmark_plays_a_round_within_the_bound() -> None:
    row = load_benchmark("secure_sums").play(4, 1000)
    assert row[:3] == ("4", "1,000", f"{traffic(4, 10)[0] / 1e3:.1f}")
    assert 0 < float(row[-2]) <= float(row[-1]) * 1.05  # both have two digits


def test_a_dry_run_says_what_secure_sums_cost(run_inline: InlineRun) -> None:
    config = resolve({"experiment": "handwritten", "set": f"{ON} {RETAKEN}", "rounds": 1})
    text = " ".join(dry_run.text(dry_run.measure(config, 4), 1).split())
    shown = run_inline(rounds=1, set=f"{ON} {RETAKEN}").rounds[0]["secure_sums"]
    for one in (shown, shown["answers"]):
        assert traffic(4, 10) == (one["bytes_up"], one["bytes_down"])
    assert "secure sums" in text and "each node makes 4 masks" in text
