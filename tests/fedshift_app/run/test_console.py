"""What a person sees: the line of a round, the final table, times."""

from typing import Any

import pytest

from fedshift_app.config.resolving import resolve
from fedshift_app.run import console
from fedshift_app.run.console import duration, round_line
from fedshift_strategies.federation.context import RoundResult

DOMAINS = {"mnist": 91.26, "usps": 75.0, "mnistm": 68.14}
FINAL = {"mnist": 92.0, "usps": 76.0, "mnistm": 69.0}
BEST = {"mnist": 93.0, "usps": 77.0, "mnistm": 70.0}
OTHER = {"mnist": 1.0, "usps": 2.0, "mnistm": None}


def table(**changes: Any) -> str:
    """Return the final table of seven rounds on three domains."""
    results = {
        "method": "i2pfl", "dataset": "digits", "model": "resnet10", "bn": "average", "evaluated": "global model",
        "seed": 3, "nodes": [{}] * 6, "averaged_rounds": 5, "domains": DOMAINS, "final": FINAL,
        "best_test": {"round": 4, "domains": BEST, "avg": 80.0}, "avg": 78.13, "std": 11.88,
    }  # fmt: skip
    return console.table(results | changes, resolve({}))


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        (
            RoundResult(3, {"a": 90.04, "b": 70.0}, losses={"loss": 0.51234}, seconds=12.34),
            "round  3/10  a 90.0  b 70.0  avg 80.0  worst b 70.0  loss 0.512  12.3 s",
        ),
        (
            RoundResult(10, {"a": None, "b": 50.0}, lost=[3]),  # it has no average
            "round 10/10  a missing  b 50.0  avg missing  without 1 node  0.0 s",
        ),
        (RoundResult(2), "round  2/10  0.0 s"),  # not scored
        (RoundResult(2, {"a": 50.0}), "round  2/10  a 50.0  avg 50.0  0.0 s"),  # no worst of one
    ],
)
def test_the_line_of_a_round(result: RoundResult, parts: str) -> None:
    assert round_line(result, rounds=10, left=83.7) == f"{parts}  left 1:24"


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        (
            {},
            ["mnist 91.3 92.0 93.0", "usps 75.0 76.0 77.0", "mnistm 68.1 69.0 70.0", "AVG 78.1 79.0 80.0", "STD 11.9"],
        ),
        ({"domains": {"usps": 75.0}, "avg": 75.0, "std": 0.0}, ["STD"]),  # one domain has no spread
        (
            {"domains": DOMAINS | {"usps": None}, "final": FINAL | {"mnist": None}},
            ["usps missing 76.0 77.0", "mnist 91.3 missing 93.0", "AVG missing missing 80.0"],
        ),
        (
            {"best_validation": {"round": 2, "chosen_on": "validation images", "domains": OTHER, "avg": 1.5}},
            ["usps 75.0 76.0 77.0 2.0", "mnistm 68.1 69.0 70.0 missing", "AVG 78.1 79.0 80.0 missing"],
        ),
        ({"others": {"bn=own": OTHER}}, ["mnist 91.3 92.0 1.0 93.0"]),
        ({"averaged_over": [60, 70, 80, 90, 100]}, ["AVG 78.1 79.0 80.0"]),
    ],
)
def test_a_table_has_a_row_of_each_domain_and_of_averages(changes: dict[str, Any], rows: list[str]) -> None:
    text = table(**changes)
    assert {*rows} <= {" ".join(line.split()) for line in text.splitlines()}
    assert all(line.isprintable() for line in text.splitlines())
    assert ("60, 70, 80, 90, 100" in text) == ("averaged_over" in changes)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0:00"), (59.6, "1:00"), (3599.0, "59:59"), (7384.0, "2:03:04"), (2 * 86_400.0 + 304.0, "2 d 0:05:04")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
