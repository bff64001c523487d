"""What tells the runs of a method apart stands in the names of rows; what no row names stands in a note."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.table import Numbers

MakeRun = Callable[..., Path]
ALL = {"scan": 50.0}
ASKS = "as the method or its experiment asks"


@pytest.fixture
def make(run: MakeRun) -> MakeRun:
    """Return a function that writes a finished run of all domains with these settings."""

    def made(method: str, given: str = "", *, seed: int = 0, domains: Any = ALL, **more: Any) -> Path:
        return run(method, seed, given=given, domains=domains, **more)

    return made


def rows(numbers: Numbers) -> list[tuple[str, tuple[int, ...]]]:
    return [(row.label, row.seeds) for row in numbers.rows]


def notes(numbers: Numbers, *words: str) -> list[str]:
    """Return the notes with one of these words."""
    return [note for note in numbers.notes if any(word in note for word in words)]


@pytest.mark.parametrize(
    ("method", "settings", "labels"),
    [
        ("fedicon", ("", "adapt.name=t3a"), ("fedicon", "fedicon adapt.name=t3a")),
        (
            "fedicon", ("", "adapt.name=t3a", "method.tta=false"),
            ("fedicon tta=true", "fedicon adapt.name=t3a", "fedicon tta=false"),
        ),
        ("fedicon", ("", "adapt.tau=0.5"), ("fedicon", "fedicon adapt.tau=0.5")),
        ("t3a", ("method.supports=20", "method.supports=50"), ("t3a supports=20", "t3a supports=50")),
        ("f2dc", ("", "aggregation.weights=equal"), ("f2dc aggregation=daa", "f2dc aggregation.weights=equal")),
        ("f2dc", ("", "modules=[f2dc,mixstyle]"), ("f2dc modules=none", "f2dc modules=f2dc,mixstyle")),
    ],
)  # fmt: skip
def test_a_setting_in_place_of_the_methods_own_makes_a_row(
    make: MakeRun, method: str, settings: Sequence[str], labels: Sequence[str]
) -> None:
    """Seeds that do not overlap would make one row of them."""
    runs = [make(method, each, seed=seed) for seed, each in enumerate(settings)]
    assert sorted(rows(compare(runs).numbers)) == sorted((label, (seed,)) for seed, label in enumerate(labels))


def test_a_setting_that_a_method_asks_for_and_some_runs_do_not_have_makes_rows(make: MakeRun) -> None:
    """FedICON has six rounds more; without them it is another row, whatever the seed."""
    shift = {"experiment": "digits-small-shift"}
    runs = [make(method, **shift) for method in ("fedavg", "fedicon")]
    fewer = make("fedicon", seed=1, given="rounds=60", **shift)
    numbers = compare([*runs, fewer]).numbers
    assert rows(numbers) == [("fedavg", (0,)), ("fedicon rounds=60", (1,)), ("fedicon rounds=66", (0,))]
    images, rounds = notes(numbers, ASKS)
    assert images.startswith(f"fedicon, {ASKS}: images.grayscale=0.2, ") and "rounds" not in images
    assert rounds == f"fedicon rounds=66, {ASKS}: rounds=66"
    assert rows(compare(runs).numbers) == [("fedavg", (0,)), ("fedicon", (0,))]  # named where it varies alone
    assert [note.endswith(", rounds=66") for note in notes(compare(runs).numbers, ASKS)] == [True]


def test_values_of_an_adaptation_over_a_method_are_held_against_its_defaults(make: MakeRun) -> None:
    """A batch of 64 images is EATA's default, not Tent's; the default of each is as the experiment leaves it."""
    eata = "model.name=cnn_bn adapt.name=eata adapt.order=test adapt.fisher_alpha=2000"
    runs = [make("fedavg", "model.name=cnn_bn"), make("fedavg", eata)]
    said = "adapt.order=test (instead of shuffled), adapt.fisher_alpha=2000.0 (instead of 1.0)"
    numbers = compare(runs).numbers
    assert [label for label, _ in rows(numbers)] == ["fedavg adapt.name=eata", "fedavg adapt.name=none"]
    assert notes(numbers, "in all its rows") == [f"fedavg, in all its rows that have it: {said}"]
    (note,) = notes(compare(runs[1:]).numbers, "in all its rows")
    assert note.startswith("fedavg, in all its rows that have it: adapt.name=eata (instead of none), ")
    assert note.endswith(said)
    settings = "model.name=cnn_bn adapt.batch_size=64 adapt.name="
    numbers = compare([make("fedprox", f"{settings}{name}") for name in ("eata", "tent")]).numbers
    said = "adapt.batch_size=64 (instead of 128)"
    assert notes(numbers, "instead of") == [f"fedprox, in all its rows that have it: {said}"]


def test_values_of_modules_over_a_method_are_held_against_their_defaults(make: MakeRun) -> None:
    runs = [make("fedavg"), make("fedavg", "modules=[mixstyle] modules.mixstyle.alpha=0.3")]
    said = "modules.mixstyle.alpha=0.3 (instead of 0.1)"
    assert notes(compare(runs).numbers, "in all its rows") == [f"fedavg, in all its rows that have it: {said}"]
    assert notes(compare(runs[1:]).numbers, "in all its rows") == [
        f"fedavg, in all its rows that have it: modules=mixstyle (instead of none), {said}"
    ]
