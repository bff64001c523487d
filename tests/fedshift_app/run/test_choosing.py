"""``keep=best-validation``, ``evaluate.patience``, and runs that are made longer when they are resumed."""

import inspect
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import MessageType
from hypothesis import given, settings
from hypothesis import strategies as st
from killing import KEEPING, NODES, KillAt, only, outcome, resume, start
from support import ROOT, ListeningGrid, Run, node, refusal_of

from fedshift.lab.pages.report import record_sections
from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.results import loading
from fedshift.run import reading
from fedshift.run.engine import inline
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.node.state_store import StateStore, keep_last
from fedshift_app.run import checkpoints, model_selection, resuming, status
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.kept_rounds import kept_rounds
from fedshift_core.wire.names import CONFIG, SERVER_ROUND, VALIDATION_CORRECT, VALIDATION_LOSS_SUM
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.context import RoundResult

VALIDATED = "allocation.validation_fraction=0.3"
SHORT = "train.epochs=1 allocation.share=0.05"
PARTS = f"{SHORT} {VALIDATED} keep=best-validation"


def history(*validation: float | None, losses: Sequence[float | None] = ()) -> list[RoundResult]:
    """Return rounds with these accuracies and losses on one domain's validation parts; None: not scored."""
    rounds = [
        RoundResult(number, accuracy={"a": 1.0}, shown={} if value is None else {"validation": {"a": value}})
        for number, value in enumerate(validation, start=1)
    ]
    for result, loss in zip(rounds, losses, strict=False):
        result.shown["validation_loss"] = {"a": loss}
    return rounds


def config(**given: Any) -> Any:
    more = " ".join(f"{key}={value}" for key, value in given.items())
    return resolve({"rounds": 50, "set": f"{VALIDATED} {more}"})


# --- the rules ------------------------------------------------------------------------------------------------


def test_the_best_round_is_the_first_of_the_highest_mean_over_domains() -> None:
    chosen = model_selection.best(history(10.0, 30.0, None, 30.0, 20.0))
    assert chosen is not None and chosen.server_round == 2
    both = [
        RoundResult(1, accuracy={"a": 1.0}, shown={"validation": {"a": 99.0, "b": None}}),  # a domain did not answer
        RoundResult(2, accuracy={"a": 1.0}, shown={"validation": {"a": 10.0, "b": 60.0}}),
        RoundResult(3, accuracy={"a": 1.0}, shown={"validation": {"a": 40.0, "b": 29.0}}),
    ]
    chosen = model_selection.best(both)
    assert chosen is not None and chosen.server_round == 2
    assert model_selection.best(history(None, None)) is None


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([0.5, 0.4, 0.3, 0.6, 0.1], 3),  # the last has a lower one, but fewer are right
        ([0.5, 0.3, 0.3, 0.6, 0.1], 2),  # of equal ones the first
        ([None, 0.4, 0.5, 0.6, 0.1], 2),  # a round whose loss is not known comes last
        ([None, None, None, None, None], 1),
        ([], 1),  # runs of before have none
    ],
)
def test_of_rounds_with_the_same_accuracy_the_lowest_loss_is_the_best(losses: list[float | None], best: int) -> None:
    rounds = history(100.0, 100.0, 100.0, 100.0, 93.0, losses=losses)
    chosen = model_selection.best(rounds)
    assert chosen is not None and chosen.server_round == best
    three = config(**{"evaluate.patience": 3})
    assert [n for n in range(1, 6) if model_selection.is_over(three, rounds[:n])] == [4, 5]  # accuracy alone


def test_a_loss_that_a_domain_lacks_is_none_of_the_round() -> None:
    shown = {"validation": {"a": 90.0, "b": 90.0, "held": None}}
    one = RoundResult(1, accuracy={"a": 1.0}, shown=shown | {"validation_loss": {"a": 0.1, "b": None, "held": None}})
    two = RoundResult(2, accuracy={"a": 1.0}, shown=shown | {"validation_loss": {"a": 0.9, "b": 0.9, "held": None}})
    chosen = model_selection.best([one, two])
    assert chosen is not None and chosen.server_round == 2


@pytest.mark.parametrize(
    ("validation", "over_after"),
    [
        ([10, 20, 19, 18, 17, 16], 5),
        ([10, 20, 20, 20, 20], 5),  # as good is no better
        ([10, 20, 19, 21, 20, 20, 20], 7),
        ([10, None, None, None, 9], 5),  # rounds that were not scored count, but nothing ends in them
        ([10, 11, 12, 13, 14, 15], None),
        ([None, None, None, None, None], None),
    ],
)
def test_patience_is_counted_in_rounds_since_the_best(validation: list[Any], over_after: int | None) -> None:
    requested = config(**{"evaluate.patience": 3})
    over = [n for n in range(1, len(validation) + 1) if model_selection.is_over(requested, history(*validation[:n]))]
    assert over[:1] == ([] if over_after is None else [over_after])
    assert not model_selection.is_over(config(), history(9, 1, 1, 1, 1, 1, 1, 1))
    short = requested.model_copy(update={"rounds": len(validation)})
    assert not model_selection.is_over(short, history(*validation))  # its last round in any case


@settings(max_examples=30)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_each_round_that_can_be_gone_back_to_has_its_best(validation: list[int]) -> None:
    """And whichever is kept was kept ever since it was written."""
    requested, before = config(keep="best-validation"), set()  # type: ignore[var-annotated]
    for number in range(1, len(validation) + 1):
        rounds = history(*validation[:number])
        kept = {*kept_rounds(number), *model_selection.needed(requested, rounds)}
        assert kept <= before | {number}
        for back in kept_rounds(number):
            assert 1 + int(np.argmax(validation[:back])) in kept
        before = kept
    assert model_selection.needed(config(), rounds) == ()


@settings(max_examples=30)
@given(trained=st.sets(st.integers(1, 30), min_size=1), validation=st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_a_node_has_its_memory_of_each_round_that_is_chosen(
    trained: set[int], validation: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("nodes")
    requested, last = config(keep="best-validation"), len(validation)
    for number in range(1, last + 1):
        chosen = model_selection.needed(
            requested, history(*validation[: number - 1])
        )  # as sent with the round's message
        if number in trained:
            StateStore(base / "node-0", chosen=chosen).remember(number, {"round": np.array(number)})
    for number in model_selection.needed(requested, history(*validation)):
        wanted = max((trains for trains in trained if trains <= number), default=0)
        assert StateStore(base / "node-0", (number,)).recall()[0] == wanted
    highest = model_selection.best(history(*validation))
    assert highest is not None
    if (base / "node-0").is_dir():
        keep_last(base, (), highest.server_round)
        assert StateStore(base / "node-0").recall()[0] == max(trains for trains in trained if trains <= last)
        wanted = max((trains for trains in trained if trains <= highest.server_round), default=0)
        assert StateStore(base / "node-0", (highest.server_round,)).recall()[0] == wanted
        assert len(list((base / "node-0").iterdir())) <= 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "keep=best-validation",
            "keep=best-validation needs validation parts on the nodes: allocation.validation_fraction above 0, found 0",
        ),
        ("evaluate.patience=3", "evaluate.patience=3 needs validation parts on the nodes: "),
        (f"{VALIDATED} keep=best-validation evaluate.fraction=0.5", "needs evaluate.fraction=1, found 0.5: "),
        (f"{VALIDATED} evaluate.patience=3 evaluate.client_models=last", "allowed are off and every"),
        (f"{VALIDATED} keep=best", "keep: Input should be 'last' or 'best-validation', found 'best'"),
        (f"{VALIDATED} evaluate.patience=-1", "evaluate.patience: .* found -1"),
    ],
)
def test_what_cannot_be_chosen_by_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve({"set": text})


def test_validation_parts_of_no_image_are_refused() -> None:
    requested = config(keep="best-validation")
    assert refusal_of(FederationError, model_selection.check_nodes, requested, [node(), node(1)]) == (
        "keep=best-validation: no node has a validation part; allocation.validation_fraction=0.3 of their training "
        "images is less than one image, or than least_images of their owners' policies"
    )
    model_selection.check_nodes(requested, [node(), node(1, num_validation=4)])
    model_selection.check_nodes(config(), [node()])
    assert config(**{"evaluate.patience": "null"}).evaluate.patience == 0


# --- runs -----------------------------------------------------------------------------------------------------


def scripted(right: Sequence[int], monkeypatch: pytest.MonkeyPatch, losses: Sequence[float] = ()) -> None:
    """Let each node say that so many of its validation images were right after each round, with such a loss."""

    class Grid(ListeningGrid):
        def pass_on(self, asked: Any, reply: Any) -> Any:
            config = asked.content.config_records[CONFIG]
            assert not [name for name in asked.content.get("knowledge", {}) if name.startswith(("m/", "v/"))]
            if asked.metadata.message_type == MessageType.EVALUATE and VALIDATION_CORRECT in reply.content["metrics"]:
                place = config[SERVER_ROUND] - 1
                reply.content["metrics"][VALIDATION_CORRECT] = right[place]
                reply.content["metrics"][VALIDATION_LOSS_SUM] = losses[place] if losses else 1.0
            return reply

    monkeypatch.setattr(inline, "InlineGrid", Grid)


EVERYTHING = (
    "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.1 allocation.validation_fraction=0.3 "
    "keep=best-validation evaluate.patience=2 "
    "server.optimizer=fedadam server.lr=0.01 aggregation.robust=median train.schedule=step train.schedule_steps=[2] "
    "train.warmup_rounds=2 train.optimizer=adamw train.lr=0.001 model.name=cnn_bn evaluate.bn=[retaken,averaged] "
    "model.bn_keep=retaken"
)


def test_a_run_that_chooses_and_ends_early_is_resumed_to_the_same_bits(
    tmp_path: Path, kill_at: KillAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted([3, 3, 0, 4], monkeypatch, losses=[2.0, 1.5, 1.0, 1.0])
    flat = {"set": EVERYTHING, "rounds": 5}
    whole = start(tmp_path / "whole", **flat)
    killed = tmp_path / "runs"
    with kill_at("moments-00003", "half"):
        start(killed, **flat)
    with kill_at("results.json", "unnamed"):
        resume(killed)
    assert not (only(killed) / "results.json").exists()
    run = resume(killed)  # nothing is left to be done but that
    assert outcome(run) == outcome(whole)
    assert run.results["resumed_after"] == [2, 3]
    assert (run.results["rounds"], len(run.rounds)) == (3, 3)
    assert run.results["stopped_early"] == {"after_round": 3, "of": 5, "best_round": 1, "patience": 2}
    chosen, best_line = run.results["chosen_round"], run.rounds[1]
    assert [line["validation"] for line in run.rounds[:2]] == [best_line["validation"]] * 2  # the loss decides
    assert (run.results["keep"], chosen["round"]) == ("best-validation", 2)
    assert (chosen["domains"], chosen["validation"]) == (best_line["accuracy"], best_line["validation"])
    assert chosen["files"] == ["checkpoint/weights-00002.safetensors", "checkpoint/knowledge-00002.safetensors"]
    best = run.results["best_validation"]
    assert {name: chosen[name] for name in best} == best
    figures = run.results["figures"]  # of the chosen round, not of the last
    assert figures["round"] == 2
    assert {name: one["accuracy"] for name, one in figures["domains"].items()} == pytest.approx(best_line["accuracy"])
    assert figures == whole.results["figures"]
    assert checkpoints.rounds(run.folder / "checkpoint") == [3, 2]
    for number in (2, 3):
        kept, wanted = (checkpoints.load(one.folder / "checkpoint", number) for one in (run, whole))
        for arrays in ("weights", "moments", "averaged"):
            result, expected = getattr(kept, arrays), getattr(wanted, arrays)
            assert result and list(result) == list(expected)
            assert all(np.array_equal(result[name], expected[name]) for name in result)
    record = reading.read(run.folder)
    assert record.checkpoint is not None and record.checkpoint.server_round == 2
    state = status.read(run.folder)
    assert (state.state, state.round, state.rounds) == ("completed", 3, 5)


def test_the_chosen_round_keeps_the_nodes_private_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted([3, 1, 1, 1, 2], monkeypatch)
    requested = f"{PARTS} allocation.share=0.05 model.name=cnn_bn server.optimizer=fedavgm"
    run = start(tmp_path / "run", method="fedbn", rounds=5, set=requested)
    assert run.results["chosen_round"]["round"] == 1
    assert "stopped_early" not in run.results
    assert checkpoints.rounds(run.folder / "checkpoint") == [5, 4, 2, 1]
    first = start(tmp_path / "first", method="fedbn", rounds=1, set=requested)
    for index in range(NODES):
        (of_run, of_first) = (one.folder / f"checkpoint/nodes/node-{index}" for one in (run, first))
        assert StateStore(of_run, (1,)).recall()[0] == 1
        assert {path.name for path in of_run.iterdir()} > {path.name for path in of_first.iterdir()}  # hashes are names
        assert len(list(of_run.iterdir())) == 2


def test_a_chosen_round_that_is_damaged_is_reported(
    tmp_path: Path, kill_at: KillAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted([3, 1], monkeypatch)
    with kill_at("results.json", "before"):
        start(tmp_path, set=PARTS, rounds=2)
    weights = only(tmp_path) / "checkpoint" / "weights-00001.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    message = refusal_of(ConfigError, resume, tmp_path)
    assert "no checkpoint in" in message
    assert "weights-00001.safetensors has " in message


# --- more rounds ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a finished run of three rounds with knowledge, private parts and moments."""
    return start(tmp_path_factory.mktemp("three"), method=KEEPING, rounds=3, set=LONGER)


LONGER = (
    "train.epochs=1 allocation.share=0.05 server.optimizer=fedyogi train.schedule=step train.schedule_steps=[1,4] "
    "train.warmup_rounds=2"
)


@pytest.mark.long
def test_a_finished_run_is_made_longer(three: Run, tmp_path: Path, kill_at: KillAt) -> None:
    whole = start(tmp_path / "whole", method=KEEPING, rounds=5, set=LONGER)
    before = three.rounds
    with kill_at("config.yaml", "unnamed"):
        resume(three.folder.parent, rounds=5)
    assert resume(three.folder.parent).results["rounds"] == 3  # as it was: the file that says more was not there yet
    with kill_at("weights-00005", "half"):
        resume(three.folder.parent, rounds=5)
    run = resume(three.folder.parent)
    assert outcome(run) == outcome(whole)
    assert run.rounds[:3] == before
    content = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert content["resolved"]["rounds"] == 5
    assert [one.get("rounds_before") for one in content["resumed"]] == [None, 3, None]
    refused = refusal_of(ConfigError, resume, three.folder.parent, rounds=4)
    assert refused.startswith("resume: the run in ") and "is finished" in refused


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"set": "train.schedule=cosine"}, "train.schedule=cosine depends on it"),
        ({"set": "train.schedule=linear"}, "train.schedule=linear depends on it"),
        ({"method": "fedproc"}, "the method 'fedproc' depends on it, its alpha is 1 - t / rounds"),
        (
            {"method": "fedicon", "set": "method.classifier_rounds=1"},
            "the method 'fedicon' depends on it, its classifier is trained in the last method.classifier_rounds",
        ),
        ({"method": "fedicon", "set": "method.lie=false"}, ""),
        ({"method": "fedavg", "set": "train.schedule=step train.schedule_steps=[7]"}, ""),
    ],
)
def test_what_goes_by_the_number_of_rounds(
    given: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = resolve(given | {"rounds": 4})
    (tmp_path / "config.yaml").write_text(
        json.dumps({"resolved": kept.model_dump(mode="json"), "run_id": "0" * 32, "engine": "inline", "nodes": 4})
    )
    requested = {"resume": str(tmp_path), "rounds": 9}
    if why:
        message = f"resume: rounds is 4 there, requested is 9: {why}"
        assert refusal_of(ConfigError, resuming.resolve, requested, hold=False) == message
    else:
        assert resuming.resolve(requested, hold=False)[0].rounds == 9
    fewer = refusal_of(ConfigError, resuming.resolve, {"resume": str(tmp_path), "rounds": 3}, hold=False)
    assert "rounds is 4 there, requested is 3" in fewer


def test_a_run_that_ended_early_says_so_and_is_not_made_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    logging.getLogger("fedshift").setLevel(logging.INFO)
    scripted([3, 1, 1, 1], monkeypatch)
    run = start(tmp_path, set=f"{SHORT} {VALIDATED} evaluate.patience=1", rounds=4)
    assert "it ended after round 2 by evaluate.patience=1" in refusal_of(ConfigError, resume, tmp_path, rounds=9)
    (result,), *_ = loading.read([run.folder])
    assert result.row_settings["server.optimizer"] == "none"  # another one is another row
    assert "keep" not in result.group_settings
    why = "stopped after round 2 of 4: no better validation since round 1 (evaluate.patience=1)"
    assert result.facts == (why,)
    assert f"fedavg, seed 0: {why}" in compare([run.folder]).json()
    assert f"S{why[1:]}." in record_sections.sections(reading.read(run.folder))[0].notes
    assert f"{why}\n" in capsys.readouterr().out


def test_methods_that_read_the_number_of_rounds_say_so() -> None:
    for method in registry.listed():
        strategy = method.strategy_class()
        source = inspect.getsource(inspect.getmodule(strategy))  # type: ignore[arg-type]
        if strategy is not DomainStrategy and re.search(r"self\.federation\.rounds|fed\.rounds", source):
            assert strategy.uses_rounds.__func__ is not DomainStrategy.uses_rounds.__func__, method.name
    reading_them = [p.name for p in (ROOT / "clients").rglob("*.py") if "setup.rounds" in p.read_text()]
    assert sorted(reading_them) == [
        "dp_sgd.py", "fedthe.py", "scaffold.py", "trainer.py",  # the schedule of the learning rate; a target epsilon
    ]  # fmt: skip
