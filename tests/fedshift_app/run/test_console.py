"""What a person sees: the line of a round, the final table, times."""

from typing import Any

import pytest

from fedshift_app.config.resolving import resolve
from fedshift_app.run import console
from fedshift_app.run.console import duration, round_line
from fedshift_core.accuracies import percent
from fedshift_core.limits import MOST_SHOWN
from fedshift_strategies.federation.context import RoundResult


def results(**changes: Any) -> dict[str, Any]:
    """A summary of seven rounds on three domains."""
    return {
        "method": "i2pfl",
        "dataset": "digits",
        "model": "resnet10",
        "bn": "average",
        "evaluated": "global model",
        "seed": 3,
        "nodes": [{}] * 6,
        "averaged_rounds": 5,
        "domains": {"mnist": 91.26, "usps": 75.0, "mnistm": 68.14},
        "final": {"mnist": 92.0, "usps": 76.0, "mnistm": 69.0},
        "best_test": {"round": 4, "domains": {"mnist": 93.0, "usps": 77.0, "mnistm": 70.0}, "avg": 80.0},
        "avg": 78.13,
        "std": 11.88,
    } | changes


def table(results: dict[str, Any]) -> str:
    """Return the final table of a run with the usual configuration."""
    return console.table(results, resolve({}))


def row(text: str, first: str) -> list[str]:
    """Return the cells of the table row that starts with ``first``."""
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


def test_round_line_holds_everything() -> None:
    result = RoundResult(3, {"mnist": 90.04, "usps": 70.0}, losses={"loss": 0.51234, "ce": 0.4}, seconds=12.34)
    line = round_line(result, rounds=10, left=83.7)
    assert line.startswith("round  3/10  ")
    assert line.split("  ")[2:] == [
        "mnist 90.0",
        "usps 70.0",
        "avg 80.0",  # (90.04 + 70) / 2 = 80.02
        "worst usps 70.0",
        "loss 0.512",
        "12.3 s",
        "left 1:24",
    ]
    assert "\n" not in line


def test_the_table_names_scored_rounds_that_are_not_the_last_ones() -> None:
    text = table(results(averaged_over=[60, 70, 80, 90, 100]))
    assert "  last 5 scored rounds" in text and "\nlast 5 scored rounds: 60, 70, 80, 90, 100\n" in text
    assert "last 5 rounds" in table(results()) and "scored" not in table(results())


def test_round_line_numbers_are_aligned() -> None:
    starts = [round_line(RoundResult(number), rounds=100, left=0.0)[:13] for number in (1, 10, 100)]
    assert starts == ["round   1/100", "round  10/100", "round 100/100"]


def test_a_round_that_lacks_a_domain_or_a_node_says_so_and_has_no_average() -> None:
    result = RoundResult(1, {"a": None, "b": 50.0}, losses={"loss": 1.0}, lost=[3])
    line = round_line(result, rounds=1, left=0.0)
    assert "a missing" in line
    assert "b 50.0" in line
    assert "avg missing" in line and "worst" not in line
    assert "without 1 node" in line


def test_round_line_without_any_answer() -> None:
    line = round_line(RoundResult(1, {"a": None}), rounds=1, left=0.0)
    assert "a missing" in line
    assert "avg missing" in line
    assert "loss" not in line


def test_table_holds_everything() -> None:
    text = table(results())
    title = text.strip().splitlines()[0]
    for part in (
        "i2pfl",
        "digits",
        "top-1 accuracy (%)",
        "global model",
        "resnet10",
        "bn=average",
        "6 nodes",
        "seed 3",
    ):
        assert part in title
    assert "last 5 rounds" in text
    assert "best round (4)*" in text
    assert "* chosen after seeing test results" in text
    assert row(text, "mnist") == ["mnist", "91.3", "92.0", "93.0"]
    assert row(text, "usps") == ["usps", "75.0", "76.0", "77.0"]
    assert row(text, "mnistm") == ["mnistm", "68.1", "69.0", "70.0"]
    assert row(text, "AVG") == ["AVG", "78.1", "79.0", "80.0"]  # (92 + 76 + 69) / 3 = 79
    assert row(text, "STD") == ["STD", "11.9"]
    alone = results() | {"domains": {"usps": 75.0}, "avg": 75.0, "std": 0.0}
    assert row(table(alone), "STD") == ["STD"]  # one domain has no spread


def test_table_columns_are_aligned_and_in_the_order_of_the_domains() -> None:
    lines = table(results()).splitlines()
    rules = [line for line in lines if line.startswith("--")]
    assert len(set(rules)) == 1
    rows = lines[lines.index(rules[0]) - 1 : lines.index("worst domain: mnistm 68.1") - 1]
    assert {len(line) for line in rows} == {len(rules[0])}
    assert [line.split()[0] for line in rows[2:5]] == ["mnist", "usps", "mnistm"]


def test_table_of_a_resumed_run_shows_few_names_of_an_earlier_version() -> None:
    by_domain = {"mnist": 1.0, "usps": 2.0, "mnistm": 3.0}
    text = table(results(others={f"\x1b[2J\n{i}" + "x" * 100_000: by_domain for i in range(900)}))
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text) < 100_000 and text.splitlines()[2].count("[2J") == MOST_SHOWN


def with_figures(**changes: Any) -> dict[str, Any]:
    """The summary with figures of round 7; nobody counted the images of usps."""
    short = {"accuracy": 90.0, "balanced_accuracy": 81.0, "macro_f1": 80.04, "auc": None, "ece": 3.0}
    fields = {"round": 7, "domains": {"mnist": {"n": 2000, **short}, "usps": None, "mnistm": {"n": 90, **short}}}
    return results(figures=fields | {"overall": {"n": 2090, **short}}, **changes)


def test_table_has_figures_next_to_the_accuracies_and_how_many_images_there_are() -> None:
    text = table(with_figures())
    assert row(text, "mnist") == ["mnist", "91.3", "92.0", "93.0", "81.0", "80.0", "2000"]
    assert row(text, "usps")[-3:] == ["missing"] * 3 and row(text, "AVG")[-2:] == ["missing"] * 2
    assert "worst domain: mnistm 68.1, of 90 test images\n" in text
    result = "^ of round 7; all 2090 test images together: accuracy 90.0, balanced 81.0, macro-F1 80.0, ECE 3.0\n"
    assert result in text
    assert max(map(len, text.splitlines()[2:])) <= 100


def test_table_with_many_other_columns_leaves_the_figures_to_their_line() -> None:
    by_domain = {"mnist": 1.0, "usps": 2.0, "mnistm": 3.0}
    text = table(with_figures(others={f"bn=averaged-{i}": by_domain for i in range(3)}))
    assert "macro-F1^" not in text and "all 2090 test images together" in text


def test_each_way_of_batchnorm_has_its_column_and_the_first_is_named() -> None:
    own = {"mnist": 11.0, "usps": 12.0, "mnistm": 13.0}
    text = table(results(others={"bn=own": own}))
    assert "BatchNorm's statistics: averaged (as they were averaged); bn=own: the same rounds with those " in text
    assert "bn=own" in text and row(text, "mnist") == ["mnist", "91.3", "92.0", "11.0", "93.0"]
    assert "BatchNorm" not in table(results())
    assert "BatchNorm's statistics: retaken (" in table(results(scored_with="retaken"))


def test_one_domain_is_not_called_the_worst() -> None:
    line = round_line(RoundResult(1, {"a": 50.0}), rounds=1, left=0.0)
    assert "worst" not in line
    assert "worst" not in round_line(RoundResult(1, {"a": None, "b": None}), rounds=1, left=0.0)
    one = {"mnist": 91.0}
    text = table(results(domains=one, final=one, best_test={"round": 1, "domains": one, "avg": 91.0}))
    assert "worst" not in text


def test_table_says_missing() -> None:
    changed = results(
        domains={"mnist": 91.26, "usps": None, "mnistm": 68.14},
        final={"mnist": None, "usps": None, "mnistm": 69.0},
        best_test={"round": 4, "domains": {"mnist": 93.0, "usps": 77.0, "mnistm": None}, "avg": 85.0},
    )
    text = table(changed)
    assert row(text, "usps") == ["usps", "missing", "missing", "77.0"]
    assert row(text, "mnistm") == ["mnistm", "68.1", "69.0", "missing"]
    assert row(text, "AVG") == ["AVG", "missing", "missing", "missing"]
    assert "usps has a score in 0 of 5 averaged rounds: AVG, STD and WORST are missing\n" in text


def test_table_with_the_round_chosen_on_validation_images() -> None:
    chosen = {"round": 2, "chosen_on": "validation images", "domains": {"mnist": 1.0, "usps": 2.0, "mnistm": None}}
    text = table(results(best_validation=chosen | {"avg": 1.5}))
    assert "best round (4)*  best round (2)+" in text
    assert row(text, "usps") == ["usps", "75.0", "76.0", "77.0", "2.0"]
    assert row(text, "mnistm")[-1] == "missing"
    assert row(text, "AVG") == ["AVG", "78.1", "79.0", "80.0", "missing"]
    assert row(text, "STD") == ["STD", "11.9"]
    assert text.rstrip().endswith("* chosen after seeing test results\n+ chosen on validation images")


def test_table_of_client_models() -> None:
    scores = {
        "averaged_rounds": 5, "by_domain": {"mnist": 45.0, "usps": None}, "ata": {"mnist": 30.0, "usps": None},
        "lta": 80.04, "gata": None, "gasa": 76.0, "cprr": None,
    }  # fmt: skip
    text = table(results(client_models=scores | {"why_missing": "it rained"}))
    assert "LTA" not in table(results())
    below = text[text.index("client models (%)") :]
    assert "last 5 rounds" in below.splitlines()[0]
    assert "all on mnist" in below and row(below, "all")[3] == "45.0"
    assert "ATA mnist" in below and row(below, "ATA")[2] == "30.0"
    assert [row(below, name)[1] for name in ("LTA", "GATA", "GASA", "CPRR")] == ["80.0", "missing", "76.0", "missing"]
    assert below.rstrip().endswith("missing: it rained")
    assert "missing:" not in table(results(client_models=scores))


def test_round_line_of_a_round_that_was_not_scored() -> None:
    line = round_line(RoundResult(2, losses={"loss": 1.0}, seconds=1.0), rounds=9, left=3.0)
    assert line == "round 2/9  loss 1.000  1.0 s  left 0:03"


def test_table_without_any_answer() -> None:
    nothing = {"mnist": None}
    changed = results(
        domains=nothing, final=nothing, avg=None, std=0.0, best_test={"round": 1, "domains": nothing, "avg": None}
    )
    text = table(changed)
    assert row(text, "mnist") == ["mnist", "missing", "missing", "missing"]
    assert row(text, "AVG") == ["AVG", "missing", "missing", "missing"]


@pytest.mark.parametrize(("value", "shown"), [(None, "missing"), (0.0, "0.0"), (100.0, "100.0"), (66.66, "66.7")])
def test_percent(value: float | None, shown: str) -> None:
    assert percent(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0:00"), (0.4, "0:00"), (9.0, "0:09"), (59.6, "1:00"), (83.7, "1:24"),
        (3599.0, "59:59"), (3600.0, "1:00:00"), (7384.0, "2:03:04"),
        (86_399.0, "23:59:59"), (86_400.0, "1 d 0:00:00"), (2 * 86_400.0 + 304.0, "2 d 0:05:04"),
    ],
)  # fmt: skip
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
