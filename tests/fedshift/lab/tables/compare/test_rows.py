"""Rows of `fedshift compare`: means, differences, groups and notes, on runs whose numbers are worked out here."""

import csv
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from compared import labels, notes, numbers
from refusals import refused

from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results.statistics import paired, spread
from fedshift_core.errors import ConfigError
from fedshift_core.intervals import interval
from fedshift_core.wire.site_figures import OVERALL as SITE_FIGURES

MakeRun = Callable[..., Path]


# --- means, differences, p ------------------------------------------------------------------------------------


def test_means_spreads_p_and_interval_are_those_of_a_hand_computation(three_seeds: list[Path]) -> None:
    fedavg, i2pfl = numbers(three_seeds).rows
    # fedavg's AVG: 50, 52, 54: mean 52, variance ((-2)^2 + 0 + 2^2) / 2 = 4.
    assert (fedavg.values["AVG"].mean, fedavg.values["AVG"].std, fedavg.values["AVG"].n) == (52, 2, 3)
    # scan 60, 62, 64; street 40, 42, 44; STD of two domains 20 apart: 20 / sqrt(2) in each seed.
    assert (fedavg.values["scan"].mean, fedavg.values["street"].mean) == (62, 42)
    assert fedavg.values["STD"].mean == pytest.approx(20 / math.sqrt(2))
    # i2pfl less fedavg, seed by seed: 1, 3, 2: mean 2, deviation 1, t = 2 / (1 / sqrt 3) = 3.4641 with 2 degrees of
    # freedom, of which the distribution is known: p = 1 - t / sqrt(2 + t^2) = 1 - 3.4641 / sqrt(14) = 0.0742.
    result = i2pfl.difference
    assert (result.difference.mean, result.difference.std) == (2, 1)
    assert result.p == pytest.approx(1 - math.sqrt(12) / math.sqrt(14)) == pytest.approx(0.0742, abs=5e-5)
    reach = 4.302653 / math.sqrt(3)  # t of 0.975 at two degrees of freedom
    assert result.interval == pytest.approx((2 - reach, 2 + reach), abs=1e-5)
    assert fedavg.difference is None
    # The best: scan 62 against (60 + 64 + 65) / 3 = 63; street 42 against 45; STD 14.14 against 18 / sqrt(2).
    assert i2pfl.best == {"scan", "street", "AVG", "STD", "WORST"} and fedavg.best == set()


def test_an_interval_is_without_zero_where_p_is_small_and_two_seeds_have_neither() -> None:
    clear = paired({0: 61.0, 1: 63.0, 2: 62.0}, {0: 50.0, 1: 52.5, 2: 51.5})
    assert clear.p < 0.05 and clear.interval is not None and clear.interval[0] > 0
    two = paired({0: 1.0, 1: 3.0}, {0: 0.0, 1: 1.0})
    assert (two.interval, two.p, two.difference.std) == (None, None, pytest.approx(math.sqrt(0.5)))
    assert spread([1.0]).std is None and spread([]).mean is None


@pytest.mark.parametrize(
    ("more", "points", "of_two"),
    [({}, "2.7", "3.8"), ({"patients": 10}, "8.0", "11.3"), ({"patients": 10, "resamples": 1000}, "2.7", "3.8")],
)
def test_the_error_of_the_test_images_that_all_seeds_share_is_named(
    run: MakeRun, figures_of: Any, more: dict[str, int], points: str, of_two: str
) -> None:
    """Half of 100 images right, of ten patients where they are known, and 80 % of 400: sqrt(.25 / 100 + .16 / 400) / 2.

    An interval of an earlier version does not go by patient, and is not read so.
    """
    counted = figures_of(50, 80)
    for name, images in (("scan", 100), ("street", 400)):
        counted["domains"][name] |= {"n": images, "images": images}
    none = dict.fromkeys(("value", "low", "high"))
    accuracy = dict(zip(none, interval(0.5, 10).tolist(), strict=True))
    scan = {"site": "scan", "domain": "scan", "images": 100, **more} | dict.fromkeys(SITE_FIGURES, none)
    sites = {"round": 5, "sites": [scan | {"accuracy": accuracy}]}
    runs = [run(m, s, 50, 80, figures=counted, site_figures=sites) for m in ("fedavg", "i2pfl") for s in range(3)]
    (note,) = notes(runs, "standard error")
    assert f" {points} points of AVG ({of_two} of a difference" in note
    assert notes(runs[:3], "standard error") == notes(runs, "standard error", score="auc") == []


def test_the_worst_domain_is_that_of_each_run_and_named_where_it_is_the_same(run: MakeRun) -> None:
    same = [run("fedavg", 0, 60, 40), run("fedavg", 1, 70, 44)]
    (row,) = numbers(same).rows
    assert (row.values["WORST"].mean, row.worst) == (42, "street")
    # 40 and 20: not the mean of a column, of which the lowest is (40 + 80) / 2 or (60 + 20) / 2.
    (row,) = numbers([same[0], run("fedavg", 1, 20, 80)]).rows
    assert (row.values["WORST"].mean, row.values["AVG"].mean, row.worst) == (30, 50, "")
    both = compare([*same, run("i2pfl", 0, 10, 50)])
    assert "| **42.00 ± 2.83 street** |" in both.markdown() and "10.00 scan |" in both.markdown()
    assert [line["worst domain"] for line in csv.DictReader(io.StringIO(both.csv()))] == ["street", "scan"]


def test_what_a_run_lacks_takes_the_average_with_it_and_is_named_once(run: MakeRun) -> None:
    runs = [run("fedavg", 0, 60, None), run("i2pfl", 1, None, 40), *(run("f2dc", seed, 61, None) for seed in (0, 1))]
    fedavg, f2dc, _ = numbers(runs).rows
    assert [fedavg.values[name].mean for name in ("scan", "AVG", "WORST")] == [60, None, None] and fedavg.worst == ""
    assert f2dc.difference.difference.mean is None and "& -- &" in compare(runs).to_latex()
    assert notes(runs, "no average over the rest") == [
        "fedavg, seed 0; f2dc, seeds 0, 1: no street; no average over the rest is taken",
        "i2pfl, seed 1: no scan; no average over the rest is taken",
    ]


def test_unequal_seeds_are_paired_on_the_common_ones_and_reported(three_seeds: list[Path], run: MakeRun) -> None:
    table = numbers([*three_seeds[:2], run("fedavg", 7, 10, 10), *three_seeds[3:]])
    result = table.rows[1].difference
    assert (result.seeds, result.difference.mean) == ((0, 1), 2)
    assert "i2pfl: seeds 0, 1, 2, fedavg 0, 1, 7: paired on 0, 1" in table.notes
    assert notes([*three_seeds[:2], run("fedprox"), run("moon")], "fedprox, moon: seeds 0, fedavg 0, 1: paired on 0")


def test_each_task_has_its_own_best(run: MakeRun) -> None:
    """``local`` scores personal models: its numbers are no better or worse than those of a global model."""
    scores = {"fedavg": (60, 40), "i2pfl": (50, 45), "local": (90, 80), "fedproto": (95, 70)}
    runs = {method: run(method, 0, *values) for method, values in scores.items()}
    table = compare([*runs.values()])
    best = {row.method: row.best - {"STD", "WORST"} for row in table.numbers.rows}
    assert best == {"fedavg": {"scan", "AVG"}, "i2pfl": {"street"}, "local": {"street", "AVG"}, "fedproto": {"scan"}}
    text = table.text()
    assert "90.00*" not in text and "95.00*" in text and "60.00*" in text
    alone = numbers([runs["fedavg"], runs["local"]])
    assert not any(row.best for row in alone.rows)  # alone in its task: nothing to be better than


# --- rows and groups ------------------------------------------------------------------------------------------


def test_differing_settings_are_named_with_their_values_or_make_groups(run: MakeRun) -> None:
    runs = [
        run("fedavg", 0, name="a"), run("i2pfl", 0, name="b"), run("fedavg", given="train.lr=0.5 rounds=7", name="c"),
    ]  # fmt: skip
    with refused(ConfigError, "rounds is 20 (a, b) and 7 (c)", "train.lr is 0.01 (a, b) and 0.5 (c)"):
        compare(runs)
    with refused(ConfigError, "rounds, train.epochs, train.lr"):  # of other experiments: too many for their values
        compare([runs[0], run("fedavg", given="train.lr=0.5 rounds=7 train.epochs=9", name="d")])
    rows = {(row.group, row.label): row for row in numbers(runs, allow_different=True).rows}
    assert list(rows) == [
        ("rounds=20, train.lr=0.01", "fedavg"), ("rounds=20, train.lr=0.01", "i2pfl"),
        ("rounds=7, train.lr=0.5", "fedavg"),
    ]  # fmt: skip
    assert "\n[rounds=7, train.lr=0.5]" in compare(runs, allow_different=True).text()
    other = rows["rounds=7, train.lr=0.5", "fedavg"]
    assert other.difference is None and other.best == set()


def test_a_setting_that_a_method_asks_for_hides_neither_another_value_nor_other_rounds(run: MakeRun) -> None:
    asks = "as the method or its experiment asks"
    same = [run("fedavg"), run("fedbn")]
    assert notes(same, asks) == [f"fedbn, {asks}: model.bn=local, model.name=cnn_bn"]
    with refused(ConfigError, "model.bn is local", "freeze"):
        compare([same[1], run("fedavg", given="model.name=cnn_bn model.bn=freeze")])
    rounds = {"experiment": "fedicon-digit5-covariate"}
    fedavg, fedicon = (run(method, **rounds) for method in ("fedavg", "fedicon"))
    assert notes([fedavg, fedicon], "rounds=110")
    with refused(ConfigError, "rounds is 100", "and 50"):
        compare([fedavg, run("fedicon", given="rounds=50", **rounds)])


@pytest.mark.usefixtures("undrawn_figures")
def test_rows_that_a_search_chose_stand_next_to_those_as_they_are(run: MakeRun) -> None:
    """One group though the learning rate differs; each kind is compared with FedAvg of its kind."""

    def tuned(method: str, scan: float, street: float, text: str, seed: int = 0) -> Path:
        was = "train.lr: 0.01" + ", method.mu: 0.01" * (method == "fedprox")
        return run(method, seed, scan, street, given=f"{text} 'tuned={{{was}}}'")

    runs = [
        run("fedprox", 0, 62, 44), tuned("fedprox", 66, 50, "train.lr=0.03 method.mu=0.5"), run("fedavg", 0, 60, 40),
        *(tuned("fedavg", 64, 46 + seed, "train.lr=0.05", seed) for seed in (0, 1)),
    ]  # fmt: skip
    table = compare(runs)
    rows = table.numbers.rows
    assert [(row.label, row.group) for row in rows] == [
        (label, "") for label in ("fedavg", "fedavg tuned", "fedprox", "fedprox tuned")
    ]
    # 53 less 50, and 58 less 55
    assert [row.difference and row.difference.difference.mean for row in rows] == [None, None, 3, 3]
    assert "fedprox tuned, chosen on validation images: train.lr=0.03 (0.01), mu=0.5 (0.01)" in table.numbers.notes
    assert labels([*runs, tuned("fedprox", 1, 2, "train.lr=0.02 method.mu=0.1")])[-2:] == [
        "fedprox tuned train.lr=0.02 mu=0.1", "fedprox tuned train.lr=0.03 mu=0.5"
    ]  # fmt: skip
    with refused(ConfigError, "train.lr is"):
        compare([*runs, run("fedprox", given="train.lr=0.03")])  # by hand


# --- names of rows ------------------------------------------------------------------------------------------


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
