"""The search of one method: what is tried next depends on the numbers before it, and on nothing else."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("optuna")
from fedshift.lab.grid.tune.requested import Plan
from fedshift.lab.grid.tune.study import COMPLETE, PRUNED, STARTUP, Search, opened
from fedshift_core.errors import ConfigError
from fedshift_core.ranges import read

SPACE = {
    "train.lr": read([0.001, 0.1, "log"], "lr"), "method.mu": read([0.0, 1.0], "mu"),
    "train.epochs": read([1, 5, "whole"], "e"), "method.kind": read({"values": ["a", "b"]}, "k"),
}  # fmt: skip
DEFAULT = {"train.lr": 0.01, "method.mu": 5.0, "train.epochs": 2, "method.kind": "a"}  # mu lies outside


def search(path: Path, *, pruning: bool = True, budget: int = 99) -> Search:
    base = SimpleNamespace(config=SimpleNamespace(seed=3))
    plan = Plan("fedprox", SPACE, DEFAULT, base, {}, "", rounds=8)  # type: ignore[arg-type]
    return Search(opened(path), plan, pruning=pruning, budget=budget)


def worth(values: dict[str, float]) -> float:
    """Stand for a run: the accuracy that values come to."""
    return 50 - 400 * abs(values.get("train.lr", 0.01) - 0.05) - 10 * abs(values.get("method.mu", 5.0) - 0.3)


def step(of: Search, rounds: int = 1, value: float = 10.0) -> int:
    """Take the next trial to its end: it reports the same value in each round."""
    number = of.next()
    assert of.report(number, dict.fromkeys(range(1, rounds + 1), value)) is None
    of.end(number, COMPLETE, value if rounds > 1 else worth(of.values(number)))
    return number


def test_the_first_trial_is_the_method_as_it_is_and_the_others_lie_in_their_ranges(tmp_path: Path) -> None:
    made = search(tmp_path / "store")
    for _ in range(8):
        step(made)
    first, *others = made.trials()
    assert (first.number, first.values) == (0, {})
    for trial in others:
        assert trial.values.keys() == SPACE.keys()
        assert all(SPACE[key].holds(value) for key, value in trial.values.items())
        assert float(f"{trial.values['train.lr']:.3g}") == trial.values["train.lr"]
    best = made.best
    assert best.validation == max(worth(dict(t.values)) for t in made.trials())
    assert search(tmp_path / "store", budget=1).best == first  # a smaller budget counts the first trials alone


def test_a_search_that_is_interrupted_goes_on_as_it_would_have(tmp_path: Path) -> None:
    """Opened anew before each trial, once with half a line at the end of the store and a lock that nobody holds."""
    whole = search(tmp_path / "whole")
    for _ in range(9):
        step(whole)
    for i in range(9):
        again = search(tmp_path / "cut")
        if i in (0, 4, 7):  # killed in a trial: it is the next one again
            number, values = again.next(), again.values(again.next())
            with (tmp_path / "cut").open("ab") as file:
                file.write(b'{"op_code":' if i == 4 else b'{"op_code":\n')
            (tmp_path / "cut.lock").symlink_to(tmp_path / "cut")
            again = search(tmp_path / "cut")
            assert (again.next(), again.values(number)) == (number, values)
        step(again)
    assert [t.values for t in search(tmp_path / "cut").trials()] == [t.values for t in whole.trials()]
    assert len({str(t.values) for t in whole.trials()}) == 9


@pytest.mark.parametrize("pruning", [True, False])
def test_a_trial_below_the_median_ends_early_once_there_are_enough_to_compare(pruning: bool, tmp_path: Path) -> None:
    made = search(tmp_path / "store", pruning=pruning)
    for i in range(STARTUP):  # each is worse than those before: none is ended
        step(made, 8, 50.0 - i)
    number = made.next()
    assert made.report(number, {1: 0.0}) is None  # a quarter of the rounds is left to each
    assert made.report(number, {1: 0.0, 2: 48.5, 3: 47.5, 4: 0.0}) is None  # the median is 48; its best was above
    made.end(number, COMPLETE, 48.5)
    number = made.next()
    assert made.report(number, {1: 0.0, 2: 20.0, 3: 90.0}) == (2 if pruning else None)
    assert search(tmp_path / "store", pruning=pruning).report(number, {}) == (2 if pruning else None)  # killed here
    made.end(number, *((PRUNED, None) if pruning else (COMPLETE, 20.0)))
    assert made.best.number == 0 and made.trials()[-1].state == ("pruned" if pruning else "complete")


def test_a_store_that_is_damaged_is_reported(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"\x00\x01 nonsense\n{}\n")
    with pytest.raises(ConfigError, match=r"store is damaged: .*; remove it"):
        opened(tmp_path / "store")
