"""Runs with secure sums: the same weights as without, whoever is lost, and what a message may ask."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file
from scipy import stats
from secure_sites import SITES, Sites, real_nodes
from support import InlineRun, ListeningGrid, Run, json_lines, listening
from traffic import asked, changing, failed, numbers

from fedshift_app.config import fits, registry
from fedshift_app.run.received_log import RECEIVED_FILE
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.params import Params
from fedshift_core.secure import crypto
from fedshift_core.secure.recovery import traffic
from fedshift_core.wire import names
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import refuse_sums

SHORT = (
    "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 evaluate.figures=false train.precision=float32"
)
ON = f"{SHORT} federation.secure_sums=on"
MORE = "allocation.share=0.1"  # with which each class has three holders
RETAKEN = "model.name=cnn_bn evaluate.bn=[retaken,averaged]"
ROUNDING = 2.0**-22  # of float32 numbers near 1, on top of the bound


def kept(run: Run, stem: str) -> Arrays:
    files = sorted((run.folder / "checkpoint").glob(f"{stem}-*.safetensors"))
    return load_file(files[-1]) if files else {}


def distance(first: Arrays, second: Arrays) -> float:
    assert first.keys() == second.keys()
    return max((float(np.abs(first[n].astype(float) - second[n]).max()) for n in first if first[n].size), default=0.0)


def place_of(message: Message) -> tuple[str, int]:
    """Return the stage of a message, and the node that it is for."""
    config, kind = asked(message), message.metadata.message_type
    stage = config.get(names.SECURE_STAGE, kind)
    if kind == "evaluate" and names.TAKE_STATISTICS in config:
        stage = "answers"
    elif config.get(names.SECURE_PURPOSE, "training") != "training":
        stage = f"answers/{stage}"
    return stage, config.get(names.NODE_INDEX, -1)


def losing(*lost: tuple[str, int]) -> Any:
    fail = failed("lost on the way")
    return changing(lambda message, reply: fail(message, reply) if place_of(message) in lost else reply)


def asking(stage: str, change: Callable[[dict[str, Any]], Any], replies: list[Message]) -> Any:
    """Return a grid that changes the messages of a stage before they are sent, and notes the replies to them."""
    changed: list[Message] = []

    def before(message: Message) -> None:
        if place_of(message)[0] == stage:
            change(message.content.config_records["config"])  # type: ignore[arg-type]
            changed.append(message)

    def noted(message: Message, reply: Message) -> Message:
        replies.extend([reply] * any(message is one for one in changed))
        return reply

    return listening(noted, before)


def trained(heard: list[Message]) -> Any:
    """Return a grid that notes the replies to training as they were sent."""
    return changing(lambda message, reply: heard.append(copy.deepcopy(reply)) or reply, "train")  # type: ignore[func-returns-value]


def ending(run_inline: InlineRun, **flat: Any) -> str:
    """Return the line with which a run ends; how it goes on comes after it."""
    with pytest.raises(FederationError) as caught:
        run_inline(**flat)
    return str(caught.value).splitlines()[0]


def left_out(run: Run) -> list[int]:
    return [int(line.split()[1]) for line in run.rounds[0]["left_out"]]


# --- the same result ---------------------------------------------------------------------------------


SUMS = ["fedavg model.name=cnn_bn", f"fedproto {MORE}", "scaffold", "feddyn method.alpha=0.1"]
OTHER_SUMS = [f"fedproto method.prototype_mean=plain {MORE}", "fedthe", "f2dc", "fedbn"]


@pytest.mark.parametrize("typed", [*SUMS, *(pytest.param(typed, marks=pytest.mark.long) for typed in OTHER_SUMS)])
def test_a_secure_sum_is_the_plain_one_within_the_bound(typed: str, run_inline: InlineRun) -> None:
    method, _, more = typed.partition(" ")
    plain, secure = (run_inline(f"method={method} rounds=1 {base} {more}") for base in (SHORT, ON))
    shown = secure.rounds[0]["secure_sums"]
    assert (shown["nodes"], shown["threshold"]) == (4, 3) and 0 < shown["error"] < 1e-6
    assert (shown["bytes_up"], shown["bytes_down"]) == traffic(4, 10)  # as is said before a run
    assert distance(kept(secure, "weights"), kept(plain, "weights")) <= shown["error"] + ROUNDING
    for stem in ("knowledge", "state"):
        # Contributions are not weighed by the node: their mean is over as many as hold a class, one at least.
        assert distance(kept(secure, stem), kept(plain, stem)) <= 64 * shown["error"] + ROUNDING
    assert secure.rounds[0]["losses"] == pytest.approx(plain.rounds[0]["losses"], abs=1e-6)


def test_the_sum_is_of_the_nodes_that_were_not_lost(run_inline: InlineRun) -> None:
    """One node is lost at each stage from which others are; the sum is that of a run that has only the rest."""
    grid = losing(("shares", 0), ("train", 3), ("unmask", 4))
    secure = run_inline(f"nodes=10 rounds=1 {ON} federation.secure_sums_nodes=2", grid=grid)
    (line,) = secure.rounds
    assert (line["nodes"], left_out(secure)) == ([1, 2, 4, 5, 6, 7, 8, 9], [0, 4, 3])
    plain = run_inline(f"nodes=10 rounds=1 {SHORT}", grid=losing(("train", 0), ("train", 3)))
    assert distance(kept(secure, "weights"), kept(plain, "weights")) <= line["secure_sums"]["error"] + ROUNDING


def test_a_reply_holds_noise_and_no_number_of_a_single_node(run_inline: InlineRun) -> None:
    heard: list[Message] = []
    run_inline(f"method=fedproto rounds=1 {ON}", grid=trained(heard))
    assert len(heard) == 4
    for reply in heard:
        arrays = decode(reply.content.array_records["arrays"])
        assert [*arrays] == ["masked"] and not reply.content.array_records["knowledge"]
        assert {*numbers(reply)} <= {"num-examples", "kept"}
        assert stats.chisquare(np.bincount(arrays["masked"] >> 24, minlength=256)).pvalue > 1e-6


def test_noise_in_single_steps_goes_with_secure_sums(run_inline: InlineRun) -> None:
    """Each node says what it has spent, as without secure sums; no other number of training leaves it."""
    heard: list[Message] = []
    private = "privacy.name=dp-sgd privacy.noise_multiplier=1 model.name=cnn"
    run = run_inline(f"rounds=2 {ON} {private}", grid=trained(heard))
    assert [line["nodes"] for line in run.rounds] == [[0, 1, 2, 3]] * 2
    assert [{*numbers(reply)} - {"kept"} for reply in heard] == [{"num-examples", "epsilon"}] * 8


# --- nodes that lose their keys, or send false ones ----------------------------------------------------


@pytest.mark.parametrize("stage", ["shares", "train", "unmask"])
def test_a_simulated_node_whose_process_ended_with_its_keys_is_counted_as_lost(
    stage: str, run_inline: InlineRun
) -> None:
    """The sum is of the others, and the run degraded: a worker process was killed, the node did nothing wrong."""

    class Grid(ListeningGrid):
        def before(self, message: Message) -> None:
            if place_of(message) == (stage, 1):
                self.context_of(message.metadata.dst_node_id).state.clear()

    run = run_inline(f"rounds=1 {ON}", grid=Grid)
    assert (left_out(run), run.results["lost"]) == ([1], {"1": [1]})


def test_nodes_that_send_the_same_key_are_named_and_left_out(run_inline: InlineRun) -> None:
    """The other nodes would refuse a sum with them, and so be left out in their place."""
    keys: list[bytes] = []

    def change(message: Message, reply: Message) -> Message:
        stage, node = place_of(message)
        if stage == "keys":
            config: Any = reply.content.config_records["config"]
            first, second = config[names.SECURE_KEYS]
            keys.append(first)
            config[names.SECURE_KEYS] = [keys[0] if node == 3 else first, second]
        return reply

    run = run_inline(f"nodes=5 rounds=1 {ON}", grid=changing(change))
    assert (run.rounds[0]["nodes"], left_out(run)) == ([1, 2, 4], [0, 3])


# --- BatchNorm's statistics --------------------------------------------------------------------------


class Heard:
    """Notes what passes a run's grid.

    Attributes:
        weights: The weights that are scored.
        statistics: BatchNorm's, as they are sent to be scored with.
        answers: Of replies in place of scores: the names of numbers, and the masked vector; empty where it is none.
    """

    def __init__(self, *lost: tuple[str, int]) -> None:
        self.weights, self.statistics, self.answers = Arrays(), Arrays(), list[tuple[set[str], Any]]()
        self._lost, self._fail = lost, failed("lost on the way")

    def __call__(self, message: Message, reply: Message) -> Message:
        if place_of(message) in self._lost:
            return self._fail(message, reply)
        if place_of(message)[0] == "answers" and not reply.has_error():
            assert {*reply.content} == {"knowledge", "metrics"}
            arrays = decode(reply.content.array_records["knowledge"])
            self.answers.append(({*numbers(reply)}, arrays.get("masked", np.zeros(0)).copy()))
        if names.STATISTICS in message.content.array_records:
            self.statistics = decode(message.content.array_records[names.STATISTICS])
            self.weights = decode(message.content.array_records["arrays"])
        return reply


@pytest.mark.parametrize("rounds", [0, 1])
def test_batchnorms_statistics_are_those_of_all_nodes_within_the_bound_and_each_answer_noise(
    rounds: int, run_inline: InlineRun
) -> None:
    plain, secure = Heard(), Heard()
    run_inline(f"rounds={rounds} {SHORT} {RETAKEN}", grid=changing(plain))
    run = run_inline(f"rounds={rounds} {ON} {RETAKEN}", grid=changing(secure))
    shown = run.rounds[0]["secure_sums"]["answers"]
    assert (shown["nodes"], shown["threshold"]) == (4, 3)
    assert [numbers for numbers, _ in secure.answers] == [{"num-examples"}] * 4
    residues = np.concatenate([vector for _, vector in secure.answers])
    assert stats.chisquare(np.bincount(residues >> 28, minlength=16)).pvalue > 1e-6
    assert {*plain.statistics} == {*secure.statistics} and plain.statistics
    near = 1e-5 if rounds else 0.0  # after a round the weights, too, are only as equal as rounding lets them be
    of_mean, of_square = shown["error"], shown["error"] * 64
    for name in (name for name in plain.statistics if name.endswith("running_mean")):
        mean, of_variance = plain.statistics[name].astype(float), name.replace("_mean", "_var")
        unit = np.sqrt(np.maximum(plain.weights[of_variance].astype(float), 1e-5))
        m = np.abs(mean - plain.weights[name].astype(float)) / unit
        bound = (of_mean + near) * unit + ROUNDING * np.abs(mean)
        assert (np.abs(secure.statistics[name] - mean) <= bound).all(), name
        variance = plain.statistics[of_variance].astype(float)
        bound = unit**2 * (of_square + 2 * m * of_mean + of_mean**2 + near * (1 + m))
        bound += ROUNDING * (variance + mean**2)
        assert (np.abs(secure.statistics[of_variance] - variance) <= bound).all(), name


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["keys", "shares", "train", "answers/keys", "answers/shares", "answers"])
def test_a_sum_of_too_few_nodes_is_refused(stage: str, run_inline: InlineRun) -> None:
    grid, rounds = losing((stage, 0), (stage, 1)), 0 if "answers" in stage else 1
    text = ending(run_inline, rounds=rounds, grid=grid, set=f"{ON} {RETAKEN if rounds == 0 else ''}")
    assert text.startswith(f"round {rounds}: secure sums: 2 ") and "3 are needed" in text


def test_too_few_nodes_for_any_round_are_refused_before_the_first(run_inline: InlineRun) -> None:
    text = ending(run_inline, rounds=1, nodes=4, set=f"{ON} federation.participation=0.5")
    assert "federation.secure_sums_nodes" in text


def _without(*keys: str) -> Callable[[Any], Any]:
    return lambda config: [config.pop(key) for key in keys]


def _other(key: str, value: Any) -> Callable[[Any], Any]:
    return lambda config: config.update({key: value})


#: Asks for keys of the sum of training once more, in place of those of the second sum.
_again = _other(names.SECURE_PURPOSE, "training")


@pytest.mark.parametrize(
    ("stage", "change", "says"),
    [
        ("answers", _without(names.SECURE_TEXTS), "secure-texts"),
        ("answers/keys", _again, "once"),
        ("answers/shares", _again, "once, in its order"),
        ("answers/keys", _other(names.SECURE_PURPOSE, "x"), "training, answers"),
        # Scores with the shares of a sum.
        ("answers", _without(names.TAKE_STATISTICS, names.BN_IMAGES), "can be summed"),
        ("train", _without(names.SECURE_TEXTS), "secure-texts"),
        ("train", _other(names.SECURE_SUMS, ["prototypes=total"]), "has no sums"),
        ("train", _other(names.SECURE_NODES, ["1"]), "a list of int"),
        ("train", _other(names.SERVER_ROUND, 2), "once, in its order"),
        ("plainly", _other(names.SECURE_TERMS, ["loss"]), "federation.secure_sums=false"),
    ],
)
def test_a_node_refuses_a_question_that_would_not_hide_its_answer(
    stage: str, change: Callable[[Any], Any], says: str, run_inline: InlineRun
) -> None:
    replies: list[Message] = []
    given = SHORT if stage == "plainly" else f"{ON} {RETAKEN}" if "answers" in stage else ON
    grid = asking(stage.replace("plainly", "train"), change, replies)
    ending(run_inline, rounds=3 if stage == "train" else 1, grid=grid, set=given)
    assert len(replies) == 4 and all(says in reply.error.reason for reply in replies)


def test_what_is_no_vector_of_the_round_is_left_out(run_inline: InlineRun) -> None:
    def change(message: Message, reply: Message) -> Message:
        reply.content["arrays"] = encode({"masked": np.zeros(3, np.uint32)})
        return reply

    run = run_inline(f"rounds=1 {ON}", grid=changing(change, "train", [1]))
    assert (run.rounds[0]["nodes"], left_out(run)) == ([0, 2, 3], [1])


def test_a_method_that_does_not_say_that_sums_do_is_refused() -> None:
    """It has a rule of its own."""
    own = type("Own", (DomainStrategy,), {"weights": lambda self, updates: [1 / len(updates)] * len(updates)})
    assert "weights" in own.needs_single(Params())
    assert DomainStrategy.needs_single(Params()) == ""


def test_each_sum_that_a_method_declares_is_one_of_what_it_contributes() -> None:
    for method in registry.listed():
        strategy = method.strategy_class()
        fields = method.params_class().model_fields
        params = method.checked_params({k: v for k, v in method.defaults.items() if k in fields})
        assert strategy.sums(params).keys() <= strategy.contributes.keys()
        assert refuse_sums(strategy, strategy.sums(params), method.defaults) == ""
        assert fits.fits_with(method).partition(" ")[0] in ("yes", "no", "with")


# --- strict nodes -------------------------------------------------------------------------------------------


@pytest.fixture
def sites(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sites:
    real_nodes(monkeypatch, tmp_path)
    return Sites(tmp_path, run_inline)


def test_strict_nodes_that_trust_each_other_send_masked_sums_and_no_counts(sites: Sites, tmp_path: Path) -> None:
    run = sites.run(2)
    assert [line["left_out"] for line in run.rounds] == [[], []]
    assert set(run.rounds[-1]["accuracy"]) == set(SITES)
    logs = sorted((tmp_path / "state").glob("*/out.jsonl"))
    assert len(logs) == 3
    received = json_lines(run.folder / RECEIVED_FILE)
    for node_id, log in enumerate(logs, 1000):
        lines = json_lines(log)
        trained = {line["name"] for line in lines if line["message"] == "train" and line["kind"] == "array"}
        assert trained == {"arrays/masked"}  # no weights, no prototypes, no counts
        assert not any("loss" in line["name"] for line in lines if line["message"] == "train" and "name" in line)
        assert not any(line.get("name", "").startswith("counts/") for line in lines)  # the policy keeps them
        left = [(line.get("name"), line["bytes"], line.get("sha256")) for line in lines]
        came = [(x.get("name"), x["bytes"], x.get("sha256")) for x in received if x["node_id"] == node_id]
        assert left == came and len(left) > 20  # what the server wrote down is what the node wrote down


def test_nodes_refuse_a_sum_with_a_node_that_has_no_key(sites: Sites) -> None:
    sites.keys["west"] = None
    with pytest.raises(FederationError) as caught:
        sites.run(1)
    assert "round 1: secure sums: 1 node dealt their shares, 3 are needed" in str(caught.value)


def test_nodes_refuse_keys_that_the_server_has_put_in_the_place_of_a_nodes(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    """With a key of its own in the place of a node's a server could unmask; the nodes see that it signed nothing."""
    own = crypto.public_of(crypto.new_secret())
    with pytest.raises(FederationError):
        sites.run(1, **{names.SECURE_MASK_KEYS: lambda keys: [keys[0], own, keys[2]]})
    text = caplog.text
    assert "node 1 of the secure sum has a signature that is not right" in text
    assert "this node's keys are not among those of the secure sum" in text  # says node 1 itself
