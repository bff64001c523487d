"""What tells the runs of a method apart stands in the names of rows; what no row names stands in a note."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.table import Numbers

MakeRun = Callable[..., Path]
ALL = {"scan": 50.0}


@pytest.fixture
def make(run: MakeRun) -> MakeRun:
    """Return a function that writes a finished run of all domains with these settings."""

    def made(method: str, given: str = "", *, seed: int = 0, domains: Any = ALL, **more: Any) -> Path:
        return run(method, seed, given=given, domains=domains, **more)

    return made


def rows(numbers: Numbers) -> list[tuple[str, tuple[int, ...]]]:
    return [(row.label, row.seeds) for row in numbers.rows]


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
