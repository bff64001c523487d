"""``keep=best-validation``, ``evaluate.patience``, and runs that are made longer when they are resumed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType
from killing import KillAt, only, outcome, resume, start
from refusals import refused
from support import ListeningGrid, node

from fedshift.lab.pages.report import record_sections
from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.results import loading
from fedshift.run import reading
from fedshift.run.engine import inline
from fedshift_app.config.resolving import resolve
from fedshift_app.node.state_store import StateStore
from fedshift_app.run import checkpoints, model_selection, status
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.wire.names import CONFIG, SERVER_ROUND, VALIDATION_CORRECT, VALIDATION_LOSS_SUM
from fedshift_strategies.federation.context import RoundResult

VALIDATED = "allocation.validation_fraction=0.3"
SHORT = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"
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


def best(rounds: list[RoundResult]) -> int:
    """Return the number of the best round."""
    chosen = model_selection.best(rounds)
    assert chosen is not None
    return chosen.server_round


def validated(number: int, losses: dict[str, float | None], **accuracies: float | None) -> RoundResult:
    shown = {"validation": accuracies, **({"validation_loss": losses} if losses else {})}
    return RoundResult(number, accuracy={"a": 1.0}, shown=shown)


def test_the_best_round_is_the_first_of_the_highest_mean_over_domains() -> None:
    assert best(history(10.0, 30.0, None, 30.0, 20.0)) == 2
    both = [
        validated(1, {}, a=99.0, b=None),  # a domain did not answer
        validated(2, {}, a=10.0, b=60.0), validated(3, {}, a=40.0, b=29.0),
    ]  # fmt: skip
    assert best(both) == 2
    assert model_selection.best(history(None, None)) is None


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([0.5, 0.3, 0.3, 0.6, 0.1], 2),  # of equal ones the first; the last has a lower one, but fewer are right
        ([None, 0.4, 0.5, 0.6, 0.1], 2),  # a round whose loss is not known comes last
        ([None, None, None, None, None], 1), ([], 1),  # runs of before have none
    ],
)  # fmt: skip
def test_of_rounds_with_the_same_accuracy_the_lowest_loss_is_the_best(losses: list[float | None], chosen: int) -> None:
    rounds = history(100.0, 100.0, 100.0, 100.0, 93.0, losses=losses)
    assert best(rounds) == chosen
    three = config(**{"evaluate.patience": 3})
    assert [n for n in range(1, 6) if model_selection.is_over(three, rounds[:n])] == [4, 5]  # accuracy alone


def test_a_loss_that_a_domain_lacks_is_none_of_the_round() -> None:
    losses: list[dict[str, float | None]] = [{"a": 0.1, "b": None, "held": None}, {"a": 0.9, "b": 0.9, "held": None}]
    assert best([validated(n, loss, a=90.0, b=90.0, held=None) for n, loss in enumerate(losses, 1)]) == 2


@pytest.mark.parametrize(
    ("validation", "over_after"),
    [
        ([10, 20, 20, 20, 20], [5]),  # as good is no better
        ([10, 20, 19, 21, 20, 20, 20], [7]),
        ([10, None, None, None, 9], [5]),  # rounds that were not scored count, but nothing ends in them
        ([10, 11, 12, 13, 14, 15], []),
    ],
)
def test_patience_is_counted_in_rounds_since_the_best(validation: list[Any], over_after: list[int]) -> None:
    requested, rounds = config(**{"evaluate.patience": 3}), history(*validation)
    over = [n for n in range(1, len(rounds) + 1) if model_selection.is_over(requested, rounds[:n])]
    assert over[:1] == over_after
    short = requested.model_copy(update={"rounds": len(rounds)})  # its last round in any case
    assert not model_selection.is_over(config(), rounds) and not model_selection.is_over(short, rounds)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("keep=best-validation", "allocation.validation_fraction"),
        ("evaluate.patience=3", "allocation.validation_fraction"),
        (f"{VALIDATED} keep=best-validation evaluate.fraction=0.5", "evaluate.fraction=1"),
        (f"{VALIDATED} evaluate.patience=3 evaluate.client_models=last", "evaluate.client_models"),
        (f"{VALIDATED} evaluate.patience=-1", "evaluate.patience"),
    ],
)
def test_what_cannot_be_chosen_by_is_refused(text: str, named: str) -> None:
    with refused(ConfigError, named):
        resolve({"set": text})


def test_validation_parts_of_no_image_are_refused() -> None:
    requested = config(keep="best-validation")
    with refused(FederationError, "keep=best-validation", "allocation.validation_fraction=0.3"):
        model_selection.check_nodes(requested, [node(), node(1)])
    model_selection.check_nodes(requested, [node(), node(1, num_validation=4)])
    model_selection.check_nodes(config(), [node()])


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
    f"{PARTS} evaluate.patience=2 "
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
    results = run.results
    assert (results["resumed_after"], results["rounds"], len(run.rounds)) == ([2, 3], 3, 3)
    assert results["stopped_early"] == {"after_round": 3, "of": 5, "best_round": 1, "patience": 2}
    chosen, best_line = results["chosen_round"], run.rounds[1]  # of two as good rounds the loss decides
    assert (chosen["round"], chosen["domains"], chosen["validation"]) == (
        2,
        best_line["accuracy"],
        best_line["validation"],
    )
    assert chosen["files"] == ["checkpoint/weights-00002.safetensors", "checkpoint/knowledge-00002.safetensors"]
    assert {name: chosen[name] for name in results["best_validation"]} == results["best_validation"]
    assert results["figures"]["round"] == results["site_figures"]["round"] == 2  # not of the last
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
    requested = f"{PARTS} model.name=cnn_bn server.optimizer=fedavgm"
    run = start(tmp_path / "run", method="fedbn", rounds=5, set=requested)
    assert run.results["chosen_round"]["round"] == 1
    assert checkpoints.rounds(run.folder / "checkpoint") == [5, 4, 2, 1]
    for folder in (run.folder / "checkpoint" / "nodes").iterdir():
        assert StateStore(folder, (1,)).recall()[0] == 1 and len(list(folder.iterdir())) == 2


def test_a_chosen_round_that_is_damaged_is_reported(
    tmp_path: Path, kill_at: KillAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted([3, 1], monkeypatch)
    with kill_at("results.json", "before"):
        start(tmp_path, set=PARTS, rounds=2)
    weights = only(tmp_path) / "checkpoint" / "weights-00001.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=weights.name):
        resume(tmp_path)


# --- more rounds ----------------------------------------------------------------------------------------------


def test_a_run_that_ended_early_says_so_and_is_not_made_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    scripted([3, 1, 1, 1], monkeypatch)
    run = start(tmp_path, set=f"{SHORT} {VALIDATED} evaluate.patience=1", rounds=4)
    with pytest.raises(ConfigError, match=r"after round 2 by evaluate\.patience=1"):
        resume(tmp_path, rounds=9)
    (result,), *_ = loading.read([run.folder])
    (why,) = result.facts
    assert "round 2 of 4" in why and "evaluate.patience=1" in why
    assert why in compare([run.folder]).json() and f"{why}\n" in capsys.readouterr().out
    assert f"S{why[1:]}." in record_sections.sections(reading.read(run.folder))[0].notes
