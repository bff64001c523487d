"""``keep_rounds``: checkpoints of named rounds stay with those that a run goes on from, and decide no number."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from killing import KillAt, only, outcome, resume, start
from refusals import refused
from support import Run

from fedshift_app.config.resolving import resolve
from fedshift_app.node import state_store
from fedshift_app.node.state_store import StateStore
from fedshift_app.run import checkpoints, model_selection
from fedshift_core.errors import ConfigError
from fedshift_core.kept_rounds import kept_rounds
from fedshift_core.limits import MOST_KEPT
from fedshift_strategies.federation.context import RoundResult

SHORT = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"


def config(more: str = "", rounds: int = 100) -> Any:
    return resolve({"rounds": rounds, "set": more})


def history(validation: list[int]) -> list[RoundResult]:
    return [
        RoundResult(n, accuracy={"a": 1.0}, shown={"validation": {"a": float(value)}})
        for n, value in enumerate(validation, start=1)
    ]


# --- the rule -------------------------------------------------------------------------------------------------

CHOSEN = st.sets(st.integers(1, 40), max_size=5)
VALIDATION = st.lists(st.integers(0, 9), min_size=1, max_size=40)


@settings(max_examples=30)
@given(CHOSEN, VALIDATION, st.booleans())
def test_each_is_kept_ever_since_and_what_can_be_gone_back_to_has_its_best(
    rounds: set[int], validation: list[int], best: bool
) -> None:
    requested, before = asked(rounds, best), set[int]()
    for number in range(1, len(validation) + 1):
        kept = {*kept_rounds(number), *model_selection.needed(requested, history(validation[:number]))}
        assert {r for r in rounds if r <= number} <= kept <= before | {number}
        for back in (*kept_rounds(number), *(r for r in rounds if r <= number)):
            assert not best or 1 + int(np.argmax(validation[:back])) in kept
        assert len(kept) <= 5 + state_store.MOST_CHOSEN
        before = kept


def asked(rounds: set[int], best: bool) -> Any:
    keep = "best-validation" if best else "last"
    kept = ",".join(map(str, sorted(rounds)))
    return config(f"allocation.validation_fraction=0.3 keep={keep} keep_rounds=[{kept}]", 40)


@settings(max_examples=30)
@given(trained=st.sets(st.integers(1, 40), min_size=1), rounds=CHOSEN, validation=VALIDATION, best=st.booleans())
def test_a_node_has_its_private_parts_of_each_round_that_is_kept(
    trained: set[int], rounds: set[int], validation: list[int], best: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whichever rounds it trained in: what it would have remembered, had the run ended there."""
    requested, last = asked(rounds, best), len(validation)
    base = tmp_path_factory.mktemp("nodes")
    folder = base / "node-0"

    def check(*numbers: int) -> None:
        for number in numbers:
            wanted = max((trains for trains in trained if trains <= number), default=0)
            assert StateStore(folder, (number,)).recall()[0] == wanted

    for number in sorted(trained):
        if number <= last:
            sent = model_selection.needed(requested, history(validation[: number - 1]))  # with the round's message
            StateStore(folder, chosen=sent).remember(number, {"round": np.array(number)})
    check(*kept_rounds(last), *model_selection.needed(requested, history(validation)))
    if folder.is_dir():
        highest = 1 + int(np.argmax(validation)) if best else last  # else nothing kept the best round
        state_store.keep_last(base, (), highest)
        check(last, highest)
        assert len(list(folder.iterdir())) <= 2


# --- the key --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("0", 0), ("1,10", 10), ("1,x", "'x'"), ("true", True),
        (str(list(range(MOST_KEPT + 1))).replace(" ", ""), MOST_KEPT),
    ],
)  # fmt: skip
def test_what_cannot_be_kept(said: str, named: object) -> None:
    with refused(ConfigError, "keep_rounds", named):
        config(f"keep_rounds={said}", 9)


# --- runs -----------------------------------------------------------------------------------------------------


def rounds_of(run: Run) -> list[int]:
    return checkpoints.rounds(run.folder / "checkpoint")


def test_a_resumed_run_keeps_them_and_may_be_asked_for_others(tmp_path: Path, kill_at: KillAt) -> None:
    plain = start(tmp_path / "plain", set=SHORT)
    assert rounds_of(plain) == [3, 2]
    runs = tmp_path / "runs"
    with kill_at("weights-00003", "before"):
        start(runs, set=f"{SHORT} keep_rounds=1")
    run = resume(runs)
    assert rounds_of(run) == [3, 2, 1]
    assert outcome(run) == outcome(plain)
    longer = resume(runs, rounds=4, set="keep_rounds=1,3")
    assert outcome(longer)[1] == outcome(start(tmp_path / "longer", rounds=4, set=SHORT))[1]
    assert rounds_of(longer) == [4, 3, 2, 1]
    resolved = yaml.safe_load((only(runs) / "config.yaml").read_text())["resolved"]
    assert resolved["keep_rounds"] == [1, 3]
    assert rounds_of(resume(runs, rounds=5)) == [5, 4, 3, 2, 1]  # as the resume before was asked
    assert rounds_of(resume(runs, rounds=6, set="keep_rounds=[]")) == [6, 5, 4]
