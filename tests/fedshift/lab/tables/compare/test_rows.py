"""`fedshift compare` on hand-made run folders whose numbers are worked out next to them."""

import csv
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from run_folders import write_run
from support import ROOT, Command, undrawn

from fedshift.lab.tables.compare import board, compare, figures, keep
from fedshift.lab.tables.compare.latex import latex
from fedshift.lab.tables.compare.notes import OPEN
from fedshift.lab.tables.compare.page import words
from fedshift.lab.tables.papers.deviations import MOST_NAMED, MOST_VALUE, Altered, listed
from fedshift.lab.tables.results import loading
from fedshift.lab.tables.results.statistics import paired, spread
from fedshift.run.html.drawing import GRID, titled
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError
from fedshift_core.intervals import interval
from fedshift_core.limits import shortened
from fedshift_core.wire.site_figures import OVERALL as SITE_FIGURES

MakeRun = Callable[..., Path]
SCAN_STREET = "dataset.domains=[scan,street]"


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return a function that writes the folder of a finished run."""

    def make(
        method: str, seed: int, domains: Mapping[str, float | None], *, name: str = "", flat: Mapping[str, Any] = {},
        recorded: Mapping[str, Any] = {}, experiment: str = "handwritten", **results: Any,
    ) -> Path:  # fmt: skip
        given = {"experiment": experiment, "method": method, "seed": seed} | flat
        config = resolve(given)
        folder = tmp_path / "runs" / (name or f"{method}-{seed}-{len(list(tmp_path.glob('runs/*')))}")
        personal = method in ("fedbn", "local", "fedproto")
        return write_run(folder, config, domains, recorded, personal=personal, **results)

    return make


def two(scan: float | None, street: float | None) -> dict[str, float | None]:
    return {"scan": scan, "street": street}


@pytest.fixture
def three_seeds(make_run: MakeRun) -> list[Path]:
    """AVG of fedavg: 50, 52, 54; of i2pfl: 51, 55, 56."""
    flat = {"set": SCAN_STREET}
    fedavg = [make_run("fedavg", s, two(60 + 2 * s, 40 + 2 * s), flat=flat) for s in range(3)]
    i2pfl = [make_run("i2pfl", s, two(avg + 9, avg - 9), flat=flat) for s, avg in enumerate((51, 55, 56))]
    return fedavg + i2pfl


def test_mean_spread_and_p_are_those_of_a_hand_computation(three_seeds: list[Path]) -> None:
    fedavg, i2pfl = compare(three_seeds).numbers.rows
    # fedavg's AVG: 50, 52, 54: mean 52, variance ((-2)^2 + 0 + 2^2) / 2 = 4.
    assert (fedavg.values["AVG"].mean, fedavg.values["AVG"].std, fedavg.values["AVG"].n) == (52, 2, 3)
    # scan 60, 62, 64; street 40, 42, 44; STD of two domains 20 apart: 20 / sqrt(2) in each seed.
    assert (fedavg.values["scan"].mean, fedavg.values["street"].mean) == (62, 42)
    assert fedavg.values["STD"].mean == pytest.approx(20 / math.sqrt(2))
    # i2pfl less fedavg, seed by seed: 1, 3, 2: mean 2, deviation 1, t = 2 / (1 / sqrt 3) = 3.4641 with 2 degrees of
    # freedom, of which the distribution is known: p = 1 - t / sqrt(2 + t^2) = 1 - 3.4641 / sqrt(14) = 0.0742.
    result = i2pfl.difference
    assert result is not None and (result.difference.mean, result.difference.std) == (2, 1)
    assert result.p == pytest.approx(1 - math.sqrt(12) / math.sqrt(14)) == pytest.approx(0.0742, abs=5e-5)
    assert fedavg.difference is None
    # The best: scan 62 against (60 + 64 + 65) / 3 = 63; street 42 against 45; STD 14.14 against 18 / sqrt(2).
    assert i2pfl.best == {"scan", "street", "AVG", "STD", "WORST"} and fedavg.best == set()


@pytest.mark.parametrize(
    ("more", "points", "of_two"),
    [({}, "2.7", "3.8"), ({"patients": 10}, "8.0", "11.3"), ({"patients": 10, "resamples": 1000}, "2.7", "3.8")],
)
def test_the_error_of_the_test_images_that_all_seeds_share_is_named_once(
    make_run: MakeRun, more: dict[str, int], points: str, of_two: str
) -> None:
    """Half of 100 images right, of ten patients where they are known, and 80 % of 400: sqrt(.25 / 100 + .16 / 400) / 2.

    An interval of an earlier version does not go by patient, and is not read so.
    """
    counted = figures_of(50, 80)
    for name, images in (("scan", 100), ("street", 400)):
        counted["domains"][name] |= {"n": images, "images": images}
    none = {"value": None, "low": None, "high": None}
    scan = {"site": "scan", "domain": "scan", "images": 100} | more | dict.fromkeys(SITE_FIGURES, none)
    scan["accuracy"] = dict(zip(("value", "low", "high"), interval(0.5, 10).tolist(), strict=True))
    runs = [
        make_run(method, seed, two(50, 80), flat={"set": SCAN_STREET}, figures=counted,
                 site_figures={"round": 5, "sites": [scan]})
        for method in ("fedavg", "i2pfl") for seed in range(3)
    ]  # fmt: skip
    table = compare(runs)
    wanted = f"a standard error of {points} points of AVG ({of_two} of a difference, if rows err independently)"
    for text in (
        table.text(),
        table.markdown(),
        table.html(Path("page.html")),
        latex(table.numbers, 2).replace(r"$\pm$", "±"),
    ):
        shown = [line for line in text.splitlines() if not line.startswith("%")]
        assert " ".join(" ".join(shown).split()).count(wanted) == 1
    for other in (compare(runs[:3]), compare(runs, score="auc")):
        assert not any("standard error" in note for note in other.numbers.notes)


def test_the_worst_domain_is_that_of_each_run_and_named_where_it_is_the_same(make_run: MakeRun) -> None:
    def cells(runs: list[Path], of: str = "fedavg") -> str:
        return next(line for line in compare(runs).markdown().splitlines() if line.startswith(f"| {of} "))

    flat = {"set": SCAN_STREET}
    same = [make_run("fedavg", 0, two(60, 40), flat=flat), make_run("fedavg", 1, two(70, 44), flat=flat)]
    assert "| 42.00 ± 2.83 |" in cells(same) and "the lowest domain of each run, street in all" in compare(same).text()
    # 40 and 20: not the mean of a column, of which the lowest is (40 + 80) / 2 or (60 + 20) / 2.
    mixed = [same[0], make_run("fedavg", 1, two(20, 80), flat=flat)]
    (row,) = compare(mixed).numbers.rows
    assert (row.values["WORST"].mean, row.values["AVG"].mean, row.worst) == (30, 50, "")
    both = [*same, make_run("i2pfl", 0, two(10, 50), flat=flat)]
    assert "| **42.00 ± 2.83 street** |" in cells(both) and "10.00 scan |" in cells(both, "i2pfl")
    assert [line["worst domain"] for line in csv.DictReader(io.StringIO(compare(both).csv()))] == ["street", "scan"]
    part = compare([make_run("fedavg", 3, two(60, None), flat=flat)]).numbers.rows[0]
    assert part.values["WORST"].mean is None and part.worst == ""


def figures_of(scan: float, street: float, n: int = 90) -> dict[str, Any]:
    def of(value: float) -> dict[str, Any]:
        short = dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "auc", "ece"), value)
        return {"n": n, **short, "per_class": {"recall": [value], "precision": [None], "n": [n]}, "confusion": [[n]]}

    return {"round": 5, "classes": ["x"], "domains": {"scan": of(scan), "street": of(street)}, "overall": of(scan)}


def test_figures_are_scores(make_run: MakeRun, tmp_path: Path) -> None:
    flat = {"set": SCAN_STREET}
    runs = [
        make_run("fedavg", 0, two(60, 40), flat=flat, figures=figures_of(50, 30)),
        make_run("i2pfl", 0, two(61, 41), flat=flat, figures=figures_of(20, 70)),
    ]
    keep(runs, tmp_path / "kept")
    for score in ("balanced_accuracy", "macro_f1", "auc", "ece"):
        table = compare(runs, score=score)
        first, second = table.numbers.rows
        assert (first.by_seed[0]["street"], second.by_seed[0]["AVG"]) == (30, 45)
        # scan 50 and 20, street 30 and 70: of errors the lowest is the best and the highest the worst.
        error = score == "ece"
        assert ("scan" in first.best, "street" in second.best) == (not error, not error)
        assert (first.values["WORST"].mean, first.worst) == ((50, "scan") if error else (30, "street"))
        assert "test images: scan 90, street 90" in table.text()
        assert compare([tmp_path / "kept"], score=score).markdown() == table.markdown()
    assert "balanced accuracy (%), last round" in compare(runs, score="balanced_accuracy").numbers.title
    assert "confusion" not in next((tmp_path / "kept").iterdir()).read_text()
    old = make_run("fedprox", 0, two(1, 2), flat=flat)
    with pytest.raises(ConfigError, match=f"--score auc: {old.name} was not scored so"):
        compare([*runs, old], score="auc")
    other = make_run("fedbn", 0, two(1, 2), flat=flat, figures=figures_of(1, 2, n=7))
    assert "test images of fedbn: scan 7, street 7" in " ".join(compare([*runs, other]).markdown().split("\n"))


def test_numbers_of_the_kept_round_and_of_the_last_do_not_stand_in_one_group(make_run: MakeRun) -> None:
    given = f"{SCAN_STREET} allocation.validation_fraction=0.2"
    kept = f"{given} keep=best-validation"
    chosen = {"best_validation": {"round": 3, "domains": two(70, 70)}}
    figures = figures_of(50, 30)

    def pair(**recorded: Any) -> list[Path]:
        last = make_run("fedavg", 0, two(60, 40), flat={"set": given}, figures=figures, recorded=recorded, **chosen)
        best = make_run(
            "fedprox", 0, two(61, 41), flat={"set": kept}, figures=figures | {"round": 3}, recorded=recorded, rounds=3,
            **chosen,
        )  # fmt: skip
        return [last, best]

    runs = pair()
    for score in ("balanced_accuracy", "macro_f1", "auc", "ece"):
        with pytest.raises(ConfigError, match=r"round is last \(fedavg-0-\d\) and best-validation \(fedprox-0-\d\)"):
            compare(runs, score=score)
        numbers = compare(runs, score=score, allow_different=True).numbers
        assert {(row.method, row.group, row.difference) for row in numbers.rows} == {
            ("fedavg", "round=last", None), ("fedprox", "round=best-validation", None)
        }  # fmt: skip
        assert numbers.title.endswith("last round or the one that was kept")
    assert compare(runs[:1], score="auc").numbers.title.endswith("AUC (%), last round")
    for score in ("last5", "final", "best", "validation"):
        assert compare(runs, score=score).numbers.rows[1].difference is not None
    assert compare(runs, score="final").numbers.title.endswith("last round")

    # All numbers of models that were scored again are of the round that was kept.
    again = pair(scored_again={"run": "another"})
    with pytest.raises(ConfigError, match="round is last"):
        compare(again, score="final")
    assert compare(again, score="validation").numbers.rows[1].difference is not None
    table = compare(again, score="final", allow_different=True)
    of = "all runs: models of other runs, after {}, scored again (fedshift rescore)"
    assert of.format("their last round or the round that they kept") in table.numbers.notes
    assert of.format("the round that they kept") in compare(again[1:]).numbers.notes
    assert table.numbers.title.endswith("last round or the one that was kept")
    rounds = {(line["method"], line["round"]) for line in csv.DictReader(io.StringIO(table.runs_csv()))}
    assert rounds == {("fedavg", "20"), ("fedprox", "3")}
    assert len(board.of_runs(loading.read(again).runs).tables) == 2


@given(st.lists(st.floats(0, 100), min_size=3, max_size=6), st.floats(-50, 50))
def test_equal_differences_have_no_p(base: list[float], shift: float) -> None:
    difference = paired({i: value + shift for i, value in enumerate(base)}, dict(enumerate(base)))
    assert difference.p is None
    assert difference.difference.mean == pytest.approx(shift, abs=1e-9)


def test_one_seed_has_no_spread_and_two_no_test(make_run: MakeRun) -> None:
    flat = {"set": SCAN_STREET}
    runs = [make_run("fedavg", 0, two(60, 40), flat=flat), make_run("i2pfl", 0, two(61, 41), flat=flat)]
    row = compare(runs).numbers.rows[1]
    assert (row.values["AVG"].mean, row.values["AVG"].std) == (51, None)
    assert row.difference is not None and row.difference.difference.mean == 1 and row.difference.p is None
    runs += [make_run("fedavg", 1, two(60, 40), flat=flat), make_run("i2pfl", 1, two(63, 43), flat=flat)]
    result = compare(runs).numbers.rows[1].difference
    assert result is not None and result.difference.std == pytest.approx(math.sqrt(2)) and result.p is None
    assert spread([]).mean is None


def test_unequal_seeds_are_paired_on_the_common_ones_and_reported(three_seeds: list[Path], make_run: MakeRun) -> None:
    extra = make_run("fedavg", 7, two(10, 10), flat={"set": SCAN_STREET})
    table = compare([*three_seeds[:2], extra, *three_seeds[3:]])
    result = table.numbers.rows[1].difference
    assert result is not None and result.seeds == (0, 1) and result.difference.mean == 2
    assert "i2pfl: seeds 0, 1, 2, fedavg 0, 1, 7: paired on 0, 1" in table.numbers.notes
    others = [make_run(name, 0, two(4, 4), flat={"set": SCAN_STREET}) for name in ("fedprox", "moon")]
    notes = compare([*three_seeds[:2], *others]).numbers.notes
    assert "fedprox, moon: seeds 0, fedavg 0, 1: paired on 0" in notes


def test_differing_settings_are_named_with_their_values_or_make_groups(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", 0, two(60, 40), name="a", flat={"set": SCAN_STREET}),
        make_run("i2pfl", 0, two(70, 50), name="b", flat={"set": SCAN_STREET}),
        make_run("fedavg", 0, two(80, 60), name="c", flat={"set": SCAN_STREET + " train.lr=0.5", "rounds": 7}),
    ]
    with pytest.raises(
        ConfigError, match=r"rounds is 20 \(a, b\) and 7 \(c\); train.lr is 0.01 \(a, b\) and 0.5 \(c\)"
    ):
        compare(runs)
    table = compare(runs, allow_different=True)
    rows = {(row.group, row.label): row for row in table.numbers.rows}
    assert list(rows) == [
        ("rounds=20, train.lr=0.01", "fedavg"), ("rounds=20, train.lr=0.01", "i2pfl"),
        ("rounds=7, train.lr=0.5", "fedavg"),
    ]  # fmt: skip
    other = rows["rounds=7, train.lr=0.5", "fedavg"]
    assert other.difference is None and other.best == set()
    assert "[rounds=7, train.lr=0.5]" in table.text()


def test_the_number_of_nodes_counts_as_a_setting(make_run: MakeRun) -> None:
    more = [{"domain": "scan", "class_counts": [1]}] * 5
    runs = [make_run("fedavg", 0, two(1, 2)), make_run("i2pfl", 0, two(1, 2), nodes=more)]
    with pytest.raises(ConfigError, match=r"nodes is 2 \(fedavg-0-0\) and 5 \(i2pfl-0-1\)"):
        compare(runs)


@pytest.mark.parametrize("flat", [{}, {"rounds": 30}, {"set": "train.lr=0.5"}])
def test_what_a_method_asks_for_itself_is_reported_and_not_refused(make_run: MakeRun, flat: dict[str, Any]) -> None:
    runs = [make_run(method, 0, two(1, 2), flat=flat) for method in ("fedavg", "fedbn", "fedicon")]
    notes = compare(runs).numbers.notes
    assert "fedbn, as the method or its experiment asks: model.bn=local, model.name=cnn_bn" in notes
    assert any(note.startswith("fedicon, as the method or its experiment asks: images.") for note in notes)


def test_a_method_may_ask_for_rounds(make_run: MakeRun) -> None:
    digits = {"mnist": 1.0, "usps": 2.0, "svhn": 3.0, "syn": 4.0, "mnistm": 5.0}
    name = "fedicon-digit5-covariate"
    runs = [make_run(method, 0, digits, experiment=name) for method in ("fedavg", "fedicon")]
    assert any("rounds=110" in note for note in compare(runs).numbers.notes)
    other = make_run("fedicon", 0, digits, experiment=name, flat={"rounds": 50})
    with pytest.raises(ConfigError, match=r"rounds is 100 .* and 50"):
        compare([runs[0], other])
    both = [make_run(method, 0, digits, experiment=name, flat={"rounds": 110}) for method in ("fedavg", "fedicon")]
    assert len(compare(both).numbers.rows) == 2


def test_a_setting_that_a_method_asks_for_does_not_hide_that_of_another(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", 0, two(1, 2), flat={"set": "model.name=cnn_bn model.bn=freeze"}),
        make_run("fedbn", 0, two(1, 2)),
    ]
    with pytest.raises(ConfigError, match=r"model\.bn is freeze"):
        compare(runs)


def test_parameters_of_a_sweep_and_modules_make_rows(make_run: MakeRun) -> None:
    runs = [make_run("i2pfl", s, two(1, s), flat={"set": f"method.tau={tau}"}) for tau in (0.1, 0.02) for s in (0, 1)]
    runs += [make_run("fedavg", 0, two(1, 2)), make_run("fedavg", 0, two(3, 4), flat={"set": "modules.name=f2dc"})]
    rows = compare(runs).numbers.rows
    assert [(row.label, row.seeds) for row in rows] == [
        ("fedavg modules=f2dc", (0,)), ("fedavg modules=none", (0,)),
        ("i2pfl tau=0.02", (0, 1)), ("i2pfl tau=0.1", (0, 1)),
    ]  # fmt: skip
    assert [row.is_baseline for row in rows] == [False, True, False, False]


def test_of_many_parameters_a_row_names_those_that_are_not_as_the_experiment_has_them(make_run: MakeRun) -> None:
    ways = ["", "method.tau=0.02", "method.lambda1=1", "method.lambda2=0.5", "method.tau=0.02 method.lambda1=1"]
    runs = [make_run("i2pfl", 0, two(1, i), flat={"set": way}) for i, way in enumerate(ways)]
    numbers = compare(runs).numbers
    assert [row.label for row in numbers.rows] == [
        "i2pfl", "i2pfl tau=0.02 lambda1=1.0", "i2pfl tau=0.02", "i2pfl lambda1=1.0", "i2pfl lambda2=0.5"
    ]  # fmt: skip
    assert "i2pfl, where a row does not name it: tau=0.07, lambda1=10.0, lambda2=1.0" in numbers.notes
    for run in runs:  # of an experiment of someone else's nothing is known
        content = (run / "config.yaml").read_text()
        (run / "config.yaml").write_text(content.replace("experiment: handwritten", "experiment: mine"))
    numbers = compare(runs).numbers
    assert "i2pfl tau=0.07 lambda1=10.0 lambda2=1.0" in [row.label for row in numbers.rows]
    assert not any("does not name" in note for note in numbers.notes)


def test_a_missing_domain_takes_the_average_with_it(make_run: MakeRun) -> None:
    table = compare([make_run("fedavg", 0, two(60, None)), make_run("i2pfl", 0, two(61, 41))])
    fedavg, i2pfl = table.numbers.rows
    assert fedavg.values["AVG"].mean is None and fedavg.values["scan"].mean == 60
    assert i2pfl.difference is not None and i2pfl.difference.difference.mean is None
    assert "fedavg, seed 0: no street; no average over the rest is taken" in table.numbers.notes
    assert "missing" in table.text()


def test_what_no_row_names_because_all_runs_have_it_is_reported_where_the_experiment_has_another_value(
    make_run: MakeRun,
) -> None:
    sharp = {"set": "method.tau=0.02"}
    runs = [make_run("fedavg", 0, two(60, 40)), *(make_run("i2pfl", s, two(61, 41), flat=sharp) for s in (0, 1))]
    numbers = compare(runs).numbers
    assert [row.label for row in numbers.rows] == ["fedavg", "i2pfl"]
    assert "i2pfl, in all its rows that have it: tau=0.02 (instead of 0.07)" in numbers.notes
    numbers = compare([*runs, make_run("i2pfl", 0, two(62, 42))]).numbers  # two rows, which name it
    assert "i2pfl tau=0.02" in [row.label for row in numbers.rows]
    assert not any("in all its rows" in note for note in numbers.notes)


def test_runs_that_lack_the_same_stand_in_one_line(make_run: MakeRun) -> None:
    runs = [make_run("fedavg", 0, two(60, None)), make_run("i2pfl", 1, two(None, 40))]
    runs += [make_run("f2dc", seed, two(61, None)) for seed in (0, 1)]
    notes = [note for note in compare(runs).numbers.notes if "no average over the rest" in note]
    assert notes == [
        "fedavg, seed 0; f2dc, seeds 0, 1: no street; no average over the rest is taken",
        "i2pfl, seed 1: no scan; no average over the rest is taken",
    ]


def test_personal_models_are_marked(make_run: MakeRun) -> None:
    table = compare([make_run("fedavg", 0, two(1, 2)), make_run("fedbn", 0, two(3, 4))])
    assert [row.scored for row in table.numbers.rows] == ["global", "personal"]
    assert any(note.startswith("scored personal") for note in table.numbers.notes)


@pytest.mark.parametrize(
    ("scored", "methods", "left"),
    [("global", ["fedavg", "fpl"], "fedbn, local"), ("personal", ["fedavg", "fedbn", "local"], "fpl")],
)
def test_one_task_alone_has_its_own_best(make_run: MakeRun, scored: str, methods: list[str], left: str) -> None:
    runs = [make_run(method, 0, FOUR) for method in ("fedavg", "local", "fpl", "fedbn")]
    numbers = compare(runs, scored=scored).numbers
    assert sorted(row.method for row in numbers.rows) == methods
    assert f"left out, not scored {scored}: {left}" in numbers.notes
    assert not any(note.startswith("left out, not scored") for note in compare(runs).numbers.notes)


def test_a_row_of_one_task_is_called_as_among_all(make_run: MakeRun) -> None:
    shared = make_run("fedproto", 0, FOUR, flat={"set": "method.share_weights=true"}, evaluated="global model")
    runs = [make_run("fedavg", 0, FOUR), make_run("fedproto", 0, FOUR), shared]
    numbers = compare(runs, scored="global").numbers
    assert [row.label for row in numbers.rows] == ["fedavg", "fedproto share_weights=true"]
    assert "left out, not scored global: fedproto share_weights=false" in numbers.notes


def test_a_wrong_task_is_reported_with_those_there_are(make_run: MakeRun) -> None:
    with pytest.raises(ConfigError, match="--scored is 'globl'; allowed are global, personal; did you mean global\\?"):
        compare([make_run("fedavg", 0, FOUR)], scored="globl")


def test_another_state_of_the_source_that_changes_no_weight_is_reported_without_a_warning(make_run: MakeRun) -> None:
    old, new = {"git": "abc"}, {"git": "def"}
    runs = [
        make_run("fedavg", 0, two(1, 2), name="a", recorded=old, weights_sha256="same"),
        make_run("i2pfl", 0, two(1, 3), name="b", recorded=old),
        make_run("fpl", 0, two(1, 4), name="c", recorded=new),
    ]
    again = make_run("fedavg", 0, two(1, 2), name="d", recorded=new, weights_sha256="same")
    other = make_run("fedavg", 0, two(1, 2), name="e", recorded=new, weights_sha256="other")
    with_it = compare([*runs, again]).numbers
    seen = "not the same git, but fedavg seed 0 ran with each and ended with the same weights: git is "
    assert any(note.startswith(seen) for note in with_it.notes)
    assert not any("git" in warning for warning in with_it.warnings)
    assert any(warning.startswith("not the same git") for warning in compare(runs).numbers.warnings)
    with pytest.raises(ConfigError, match="seed 0 comes twice, with different numbers"):
        compare([*runs, other])


def test_warnings_name_what_differs_and_equal_weights(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", 0, two(1, 2), name="a", weights_sha256="same"),
        make_run(
            "i2pfl", 0, two(1, 2), name="b", weights_sha256="same", recorded={"engine": "simulation", "git": "abc"}
        ),
        make_run("fedprox", 0, two(1, 2), name="c", recorded={"versions": {"torch": "2"}}),
        make_run("fedproto", 0, two(1, 2), name="d", weights_sha256="start"),
        make_run("local", 0, two(1, 3), name="e", weights_sha256="start"),
    ]
    warnings = compare(runs).numbers.warnings
    assert "fedavg and i2pfl ended with the same weights (seed 0): does one do nothing?" in warnings
    assert any(w.startswith("not the same engine: engine is inline") and "simulation (b)" in w for w in warnings)
    assert any(w.startswith("not the same git: git is") and "abc (b)" in w for w in warnings)
    assert any(w.startswith("not the same torch") and "2 (c)" in w for w in warnings)
    assert not any("local" in w and "weights" in w for w in warnings)


def test_another_split_of_the_same_seed_is_reported(make_run: MakeRun) -> None:
    nodes = [{"domain": "scan", "class_counts": [9, 9]}, {"domain": "street", "class_counts": [1, 2]}]
    table = compare([make_run("fedavg", 0, two(1, 2)), make_run("i2pfl", 0, two(1, 2), nodes=nodes)])
    assert table.numbers.warnings == ("seed 0: the nodes hold other images in fedavg-0-0, i2pfl-0-1",)


def test_a_repeated_seed_counts_once_and_another_number_is_refused(make_run: MakeRun) -> None:
    runs = [make_run("fedavg", 0, two(1, 2), name=name, weights_sha256="w") for name in ("a", "b")]
    table = compare(runs)
    assert table.numbers.rows[0].seeds == (0,)
    assert "b repeats a with the same numbers and counts once" in table.numbers.notes
    runs.append(make_run("fedavg", 0, two(1, 3), name="c"))
    with pytest.raises(ConfigError, match="fedavg: seed 0 comes twice, with different numbers: a and c"):
        compare(runs)


def test_scores(make_run: MakeRun) -> None:
    clients = {"lta": 90, "ata": two(10, 30), "gata": 20, "gasa": 80, "cprr": 25, "by_domain": two(50, 70)}
    run = make_run(
        "fedavg", 0, two(1, 2), final=two(3, 4), best_test={"round": 1, "domains": two(5, 6)},
        best_validation={"round": 2, "domains": two(7, 8)}, client_models=clients,
    )  # fmt: skip
    scan = {score: compare([run], score=score).numbers.rows[0].values["scan"].mean
            for score in ("last5", "final", "best", "validation")}  # fmt: skip
    assert scan == {"last5": 1, "final": 3, "best": 5, "validation": 7}
    assert "best round, chosen after seeing test results" in compare([run], score="best").text()
    values = compare([run], score="clients").numbers.rows[0].values
    assert {name: value.mean for name, value in values.items()} == {
        "ATA scan": 10, "ATA street": 30, "LTA": 90, "GASA": 80, "CPRR": 25, "GATA": 20,
        "all on scan": 50, "all on street": 70, "all on AVG": 60,
    }  # fmt: skip
    plain = make_run("i2pfl", 0, two(1, 2))
    for score in ("validation", "clients"):
        with pytest.raises(ConfigError, match=f"--score {score}: i2pfl-0-1"):
            compare([plain], score=score)
    with pytest.raises(ConfigError, match="--score is 'worst'; allowed are last5, final, best"):
        compare([plain], score="worst")


def test_folders_files_and_unfinished_runs(make_run: MakeRun, tmp_path: Path) -> None:
    fedavg, i2pfl = make_run("fedavg", 0, two(1, 2)), make_run("i2pfl", 0, two(3, 4))
    kept = json.loads((i2pfl / "results.json").read_text()) | {
        "config": yaml.safe_load((i2pfl / "config.yaml").read_text())
    }
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "i2pfl.json").write_text(json.dumps(kept))
    for paths in ([fedavg.parent], [fedavg, i2pfl, fedavg.parent], [fedavg / "results.json", tmp_path / "kept"]):
        assert [row.label for row in compare(paths).numbers.rows] == ["fedavg", "i2pfl"]
    (i2pfl / "results.json").unlink()
    assert "left out, not finished: i2pfl-0-1" in compare([fedavg.parent]).numbers.notes
    with pytest.raises(ConfigError, match="no finished run"):
        compare([i2pfl])
    with pytest.raises(ConfigError, match="there is no file or folder"):
        compare([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match=r"--latex takes no file, it prints: --latex > table\.tex"):
        compare([fedavg.parent, tmp_path / "table.tex"])
    with pytest.raises(ConfigError, match=rf"and holds none.*; name .* that hold runs: kept, {fedavg.parent.name}$"):
        compare([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no results with their config$"):
        compare([tmp_path / "empty"])
    (tmp_path / "fedavg.log").write_text("round 1/1")  # a pattern like sweep-*/*fedavg* catches logs too
    with pytest.raises(ConfigError, match=r"fedavg\.log is no run: name run folders"):
        compare([tmp_path / "fedavg.log"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "results.json: cannot be read as JSON"),
        ("[]", "results.json: content: "),
        ('{"method": "fedavg"}', "results.json: dataset: Field required"),
    ],
)
def test_broken_results_are_named(make_run: MakeRun, content: str, reason: str) -> None:
    run = make_run("fedavg", 0, two(1, 2))
    (run / "results.json").write_text(content)
    with pytest.raises(ConfigError, match=reason):
        compare([run])


def test_a_kept_file_that_is_cut_off_is_named_and_other_json_is_not(
    three_seeds: list[Path], fedshift: Command, tmp_path: Path
) -> None:
    kept = keep(three_seeds, tmp_path / "kept")
    (tmp_path / "kept" / "costs.json").write_text("[1]")
    kept[-1].write_text(kept[-1].read_text()[:200])
    code, out, error = fedshift("compare", tmp_path / "kept")
    assert code == 1 and error == "error: runs that cannot be read were left out: 1\n"
    assert f"left out, cannot be read: {kept[-1].name}: " in " ".join(out.split()) and "costs.json" not in out
    (row,) = [row for row in compare([tmp_path / "kept"]).numbers.rows if row.method == "i2pfl"]
    assert row.seeds == (0, 1)
    alone = tmp_path / "alone"
    alone.mkdir()
    kept[-1].rename(alone / "run.json")
    with pytest.raises(ConfigError, match=r"run\.json: cannot be read as JSON"):
        compare([alone])


def test_results_of_another_run_are_refused(make_run: MakeRun) -> None:
    run, other = make_run("fedavg", 0, two(1, 2)), make_run("fedavg", 4, two(1, 2))
    (run / "results.json").write_bytes((other / "results.json").read_bytes())
    with pytest.raises(ConfigError, match=r"method 'fedavg', seed 4; its configuration says 'fedavg', 0"):
        compare([run])


DIGITS = {"mnist": 96.04, "usps": 90.0, "svhn": 88.0, "syn": 52.0}


def test_a_papers_row_stands_next_to_ours(make_run: MakeRun) -> None:
    run = make_run("fedavg", 0, DIGITS, experiment="f2dc-digits")
    table = compare([run, make_run("fedbn", 0, DIGITS, experiment="f2dc-digits")], paper="F2DC.Table 2")
    row, fedbn = table.numbers.rows
    assert row.paper is not None and row.paper.label == "FedAvg"
    printed = {"mnist": 96.04, "usps": 89.84, "svhn": 88.04, "syn": 51.05, "AVG": 81.24, "STD": 20.42}
    assert row.paper.values == printed | {"WORST": None}  # which no paper prints
    assert row.paper.difference["mnist"] == 0 and row.paper.difference["syn"] == pytest.approx(0.95)
    assert row.paper.difference["AVG"] == pytest.approx((96.04 + 90 + 88 + 52) / 4 - 81.24)
    assert fedbn.paper is None and "the paper prints no row of fedbn" in table.numbers.notes
    budget = "budget: rounds 100 (paper 100), epochs 10 (paper 10), nodes 4 (paper 20); network resnet10"
    assert any(note.startswith(budget) for note in table.numbers.notes)
    assert any(note.startswith("print error: Table 2 FDSE") for note in table.numbers.notes)
    assert "81.24" in table.text() and "ours - paper" in table.markdown()


def test_the_budget_next_to_a_papers_rows_is_that_of_all_groups(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", 0, DIGITS, experiment="f2dc-digits", flat={"set": f"train.epochs={epochs} {network}"})
        for epochs, network in ((5, ""), (6, "model.name=cnn"))
    ]
    notes = compare(runs, paper="f2dc.table2", allow_different=True).numbers.notes
    budget = (
        "budget: rounds 100 (paper 100), epochs 6 / 5 (paper 10), nodes 4 (paper 20); network cnn / resnet10 (paper "
    )
    assert any(note.startswith(budget) for note in notes)


def as_many(number: int) -> list[dict[str, Any]]:
    """Return as many nodes as a results file tells of."""
    return [{"domain": "mnist", "class_counts": [1]}] * number


FIVE = DIGITS | {"mnistm": 50.0}
FOUR = {"photo": 60.0, "art_painting": 50.0, "cartoon": 70.0, "sketch": 75.0}
BY_BATCH = "model.name=cnn_bn evaluate.bn=[averaged,own,batch] images.eval_batch=32"
CLIENTS = {"lta": 90, "ata": FIVE, "gata": 91.0, "gasa": 93.0, "cprr": 97.8, "by_domain": FIVE}


@pytest.mark.parametrize(
    ("experiment", "method", "flat", "paper", "reason"),
    [
        ("f2dc-digits", "f2dc", {}, "f2dc.table2", []),
        ("f2dc-digits", "f2dc", {"set": "method.sigma=5 method.local_modules=aggregate method.eval_modules=aggregated"},
         "f2dc.table2", ["sigma=5.0 (paper 0.1)", "local_modules=aggregate (paper local)"]),
        ("f2dc-digits", "f2dc", {"rounds": 20}, "f2dc.table2", ["rounds=20 (paper 100)"]),
        ("f2dc-digits", "fedavg", {"set": "aggregation.weights=equal train.lr=0.1"}, "f2dc.table2",
         ["aggregation.weights=equal (paper method)", "train.lr=0.1 (paper 0.01)"]),
        ("f2dc-digits", "fedprox", {"set": "model.name=cnn allocation.share=0.02 images.flip=false"}, "f2dc.table2",
         ["model.name=cnn (paper resnet10)", "allocation.share=0.02 (paper 0.01)"]),
        ("f2dc-digits", "moon", {"set": "train.threads=2 federation.node_timeout=9 dataset.data_dir=/mine"},
         "f2dc.table2", []),
        ("f2dc-pacs", "fedavg", {"set": "modules=[f2dc] modules.f2dc.sigma=5"}, "f2dc.table3",
         ["modules.f2dc.sigma=5.0 (paper 0.1)", "modules.f2dc.local_modules=aggregate (paper local)"]),
        ("f2dc-pacs", "f2dc", {"set": "method.sigma=0.3"}, "f2dc.table5", []),
        ("f2dc-pacs", "f2dc", {"set": "method.sigma=0.3 method.tau=0.1"}, "f2dc.table5",
         ["tau=0.1 (paper 0.06)"]),
        ("fedcode-digit5", "fedcode", {"set": "method.alpha=5 method.use_sain=false"}, "fedcode.table3",
         ["alpha=5.0 (paper 20.0)", "use_sain=false (paper true)"]),
        ("fedcode-digit5", "fedcode", {"set": "method.use_fdr=false"}, "fedcode.table5", []),
        ("i2pfl-out-digits", "i2pfl", {"set": "allocation.held_out=[usps]"}, "i2pfl.tableiiidigits", []),
        ("i2pfl-out-digits", "i2pfl", {"set": "allocation.held_out=[usps,syn]"}, "i2pfl.tableiiidigits",
         ["allocation.held_out=[usps,syn] (paper [mnist])"]),
        ("fedicon-digit5-covariate", "fedavg", {"set": "images.eval_batch=256 evaluate.bn_images=10"}, "fedicon.table1",
         []),
        ("fedicon-digit5-covariate", "fedthe", {"set": "images.eval_batch=256"}, "fedicon.table1",
         ["images.eval_batch=256 (paper 32)"]),
        ("f2dc-digits", "fedavg", {"set": "evaluate.bn=[batch] images.eval_batch=256 evaluate.bn_images=10"},
         "f2dc.table2", ["images.eval_batch=256 (paper 64)", "evaluate.bn=batch (paper averaged)"]),
        ("f2dc-digits", "fedavg", {"set": "evaluate.bn=[own] images.eval_batch=256 evaluate.bn_images=10"},
         "f2dc.table2", ["evaluate.bn=own (paper averaged)", "evaluate.bn_images=10 (paper 1000)"]),
        ("fedicon-table8-without-lie", "fedicon", {}, "fedicon.table8", []),
        ("fedicon-table8-without-lie", "fedicon", {"set": "adapt.flip=true"}, "fedicon.table8", []),
    ],
)  # fmt: skip
def test_each_value_that_is_not_the_papers_is_named(
    make_run: MakeRun, experiment: str, method: str, flat: dict[str, Any], paper: str, reason: list[str]
) -> None:
    config = resolve({"experiment": experiment, "method": method} | flat)
    nodes = as_many(config.allocation.num_nodes() or 0)
    numbers = FOUR if config.dataset.name == "pacs" else FIVE
    run = make_run(method, 0, numbers, experiment=experiment, flat=flat, nodes=nodes, client_models=CLIENTS)
    table = compare([run], paper=paper, score="clients" if "fedcode" in experiment else "last5")
    (row,) = table.numbers.rows
    assert row.paper is not None and [deviation.text for deviation in row.paper.altered] == reason
    named = f"{row.label} with {row.paper.label}"
    expected = f"not the paper's, {named}: {', '.join(reason)}" if reason else f"all as in the paper: {named}"
    assert expected in table.numbers.notes
    start = f"the paper's values are those of conf/experiments/{experiment}"
    assert sum(note.partition(", but for ")[0] == start for note in table.numbers.notes) == 1


def test_the_released_code_stands_next_to_the_papers_row_with_all_that_it_has_otherwise(make_run: MakeRun) -> None:
    run = make_run("f2dc-code", 0, DIGITS, experiment="f2dc-digits", nodes=as_many(20))
    (row,) = compare([run], paper="f2dc.table2").numbers.rows
    assert row.paper is not None and row.paper.label == "F2DC"
    assert [one.text for one in row.paper.altered] == [
        "name=f2dc-code (paper f2dc)", "conv_layers=3 (paper 2)", "noise=gumbel_pair (paper logistic_pair)",
        "local_modules=aggregate (paper local)", "aggregation=fedavg (paper daa)", "train.lr=0.1 (paper 0.01)",
        "train.momentum=0.0 (paper 0.9)", "train.weight_decay=0.0 (paper 1e-05)",
    ]  # fmt: skip
    assert [one.text for one in row.paper.readings] == [
        "hidden=50 (64)", "eval_noise=true (false)", "eval_modules=aggregated (client_mean)",
    ]  # fmt: skip


def test_test_batches_are_reported_where_they_decide(make_run: MakeRun) -> None:
    others = {"others": {"bn=batch": two(3, 4), "bn=own": two(5, 6)}}
    runs = [make_run("fedavg", seed, two(1, 2), flat={"set": BY_BATCH}, **others) for seed in (0, 1)]
    result = "batches of 32 test images, which decide bn=batch"
    for score, expected in (("bn=batch", True), ("bn", True), ("bn=own", False), ("last5", False)):
        assert (result in compare(runs, score=score).numbers.notes) is expected, score


@pytest.mark.usefixtures("undrawn_figures")
def test_altered_values_stand_in_every_format(make_run: MakeRun) -> None:
    flat = {"set": "method.sigma=5", "rounds": 20}
    run = make_run("f2dc", 0, DIGITS, experiment="f2dc-digits", flat=flat, nodes=as_many(20))
    table = compare([run], paper="f2dc.table2")
    result = "sigma=5.0 (paper 0.1), rounds=20 (paper 100)"
    assert f"- not the paper's, f2dc with F2DC: {result}" in table.text()
    assert f"- not the paper's, f2dc with F2DC: {result}" in table.markdown()
    assert f"<li>not the paper&#39;s, f2dc with F2DC: {result}</li>" in table.html()
    for text in (table.text(), table.markdown(), table.html()):
        assert "  ours - paper (2 settings differ)" in text
    (line,) = csv.DictReader(io.StringIO(table.csv()))
    assert line["not the paper's"] == result.replace(", ", "; ")
    (row,) = json.loads(table.json())["rows"]
    assert row["altered"] == {
        "method.sigma": {"ours": ["5.0"], "paper": "0.1"}, "rounds": {"ours": ["20"], "paper": "100"}
    }  # fmt: skip
    as_printed = compare(
        [make_run("f2dc", 0, DIGITS, experiment="f2dc-digits", nodes=as_many(20))],
        paper="f2dc.table2",
    )
    assert "  ours - paper  " in as_printed.text() and "ours - paper (" not in as_printed.text()


def test_values_that_all_rows_alter_are_reported_once(make_run: MakeRun) -> None:
    domains = {"mnist": 96.0, "usps": 90.0, "mnistm": 50.0}
    runs = [make_run(m, 0, domains, experiment="digits-small", nodes=as_many(6)) for m in ("fedavg", "fedprox", "f2dc")]
    notes = compare(runs, paper="f2dc.table2").numbers.notes
    shared = [note for note in notes if note.startswith("not the paper's, every row with a printed one: ")]
    assert len(shared) == 1
    for result in (
        "rounds=10 (paper 100)", "nodes=6 (paper 20)", "train.epochs=5 (paper 10)",
        "allocation.counts={mnist:2,mnistm:2,usps:2} (paper {mnist:3,svhn:6,syn:5,usps:6})",
        "allocation.share={mnist:0.01,mnistm:0.03,usps:0.05} (paper 0.01)",
        "dataset.domains=[mnist,usps,mnistm] (paper [mnist,usps,svhn,syn])",
    ):  # fmt: skip
        assert result in shared[0]
    assert "dataset.size" not in shared[0]  # null is the data set's own, 32
    assert (
        "not the paper's, f2dc with F2DC: lambda1=0.1 (paper 0.8), noise=gumbel_pair (paper logistic_pair), "
        "local_modules=aggregate (paper local)" in notes
    )
    assert f"{OPEN}, fedprox with FedProx: mu=0.01 (0.0001)" in notes


def test_a_lost_label_is_reported_as_a_reading(make_run: MakeRun) -> None:
    flat = {"set": "method.use_apa=false"}
    run = make_run("i2pfl", 0, DIGITS, experiment="i2pfl-digits", flat=flat, nodes=as_many(20))
    table = compare([run], paper="i2pfl.tableivdigits")
    (row,) = table.numbers.rows
    assert row.paper is not None and row.paper.values["AVG"] == 86.11 and row.paper.altered == ()
    assert "  paper: w/o APA (a reading)" in table.text()
    assert any(note.startswith("the label of w/o APA is lost in the paper's text, and this is a reading: ")
               for note in table.numbers.notes)  # fmt: skip


@given(st.integers(0, 300), st.text(max_size=400))
def test_a_line_of_altered_values_is_bounded_and_counts_the_rest(number: int, value: str) -> None:
    values = [Altered(f"train.key{i}", (shortened(value, MOST_VALUE),), "0") for i in range(number)]
    result = listed(values)
    assert len(result) <= MOST_NAMED * (MOST_VALUE + 40) + 40
    assert result.count("(paper 0)") - value.count("(paper 0)") * min(number, MOST_NAMED) <= MOST_NAMED
    assert result.endswith(f" and {number - MOST_NAMED} more, which --json names") == (number > MOST_NAMED)


def test_domains_that_only_one_side_has_are_reported_and_averages_left_out(make_run: MakeRun) -> None:
    three = {"mnist": 96.0, "usps": 90.0, "mnistm": 50.0}
    table = compare([make_run("fedavg", 0, three, experiment="digits-small")], paper="f2dc.table2")
    paper = table.numbers.rows[0].paper
    assert paper is not None and paper.values["mnistm"] is None and paper.values["AVG"] is None
    assert {"in the paper only: svhn, syn", "in the runs only: mnistm"} <= set(table.numbers.notes)


def test_an_unseen_domain_stands_next_to_its_column_only(make_run: MakeRun) -> None:
    run = make_run("fedavg", 0, DIGITS, experiment="i2pfl-out-digits")
    paper = compare([run], paper="i2pfl.Table III Digits").numbers.rows[0].paper
    assert paper is not None
    assert {column: value for column, value in paper.values.items() if value is not None} == {"mnist": 72.02}


def test_measures_of_client_models_stand_next_to_fedcodes(make_run: MakeRun) -> None:
    five = dict(DIGITS) | {"mnistm": 50.0}
    clients = {"lta": 90, "ata": five, "gata": 91.0, "gasa": 93.0, "cprr": 97.8, "by_domain": five}
    run = make_run("fedcode", 0, five, experiment="fedcode-digit5", client_models=clients)
    paper = compare([run], paper="fedcode.table3", score="clients").numbers.rows[0].paper
    assert paper is not None and (paper.values["ATA mnist"], paper.values["GATA"]) == (88.68, 91.53)
    assert paper.difference["GATA"] == pytest.approx(-0.53) and paper.values["LTA"] is None


def test_a_table_of_other_runs_is_refused(make_run: MakeRun) -> None:
    run = make_run("fedavg", 0, DIGITS, experiment="f2dc-digits")
    with pytest.raises(
        ConfigError, match=r"f2dc.table1b: the table needs runs with dataset.name=pacs, found .*=digits"
    ):
        compare([run], paper="f2dc.table1b")
    with pytest.raises(ConfigError, match=r"do not have; `fedshift costs METHOD... --paper f2dc.table4` has them"):
        compare([run], paper="f2dc.table4")
    with pytest.raises(ConfigError, match=r"it prints clients, which runs do not have$"):
        compare([run], paper="i2pfl.tablei")
    with pytest.raises(ConfigError, match=r"--score clients"):
        compare([run], paper="fedcode.table3")
    with pytest.raises(ConfigError, match=r"unknown table 'f2dc.table9'; there are f2dc.table1a, f2dc.table1b"):
        compare([run], paper="f2dc.table9")


class _Page(HTMLParser):
    """Collects the cells of the table; fails where tags are not balanced."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.cells: list[str] = []
        self.links: list[str] = []
        self.labels: list[str] = []
        self.terms: dict[str, list[str]] = {"dt": [], "dd": []}

    @classmethod
    def read(cls, text: str) -> "_Page":
        page = cls()
        page.feed(text)
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [str(value) for key, value in attrs if key == "src" or (tag == "a" and key == "href")]
        self.labels += [str(value) for key, value in attrs if tag == "svg" and key == "aria-label"]
        if tag != "meta":
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data
        if self.open and self.open[-1] in self.terms:
            self.terms[self.open[-1]].append(data)


@pytest.mark.usefixtures("undrawn_figures")
def test_all_formats_show_the_same_numbers(three_seeds: list[Path]) -> None:
    table = compare(three_seeds)
    page = _Page()
    page.feed(table.html())
    assert page.open == [] and page.links == []
    for shown in ("52.00 ± 2.00", "54.00 ± 2.65", "+2.00 ± 1.00", "0.074"):
        assert shown in page.cells
        assert shown in table.text() and shown in table.markdown()
    assert max(map(len, table.text().splitlines())) <= 100
    assert max(map(len, table.text(60).splitlines())) <= 60
    fedavg, i2pfl = csv.DictReader(io.StringIO(table.csv()))
    assert float(fedavg["AVG"]) == 52 and float(i2pfl["difference"]) == 2 and i2pfl["seeds"] == "0 1 2"
    assert json.loads(table.json())["rows"][1]["by_seed"]["1"]["AVG"] == 55
    heads = [line.count("|") for line in table.markdown().splitlines() if line.startswith("|")]
    assert len(set(heads)) == 1


def test_the_interval_is_that_of_a_hand_computation_and_without_zero_where_p_is_small() -> None:
    difference = paired({0: 51.0, 1: 55.0, 2: 56.0, 3: 9.0}, {0: 50.0, 1: 52.0, 2: 54.0})
    reach = 4.302653 / math.sqrt(3)  # differences 1, 3, 2: mean 2, deviation 1; t of 0.975 at two degrees of freedom
    assert difference.interval == pytest.approx((2 - reach, 2 + reach), abs=1e-5) and difference.p == pytest.approx(
        0.0742, abs=1e-4
    )
    assert paired({0: 1.0, 1: 3.0}, {0: 0.0, 1: 1.0}).interval is None
    clear = paired({0: 61.0, 1: 63.0, 2: 62.0}, {0: 50.0, 1: 52.5, 2: 51.5})
    assert clear.p is not None and clear.p < 0.05 and clear.interval is not None and clear.interval[0] > 0


def with_rounds(folder: Path, avgs: list[float | None]) -> None:
    """Write the rounds of a run; None: a domain is missing. The last one is scored on a part of the images."""
    lines = [{"round": n, "accuracy": {"scan": 10.0, "street": avg and 2 * avg - 10}} for n, avg in enumerate(avgs, 1)]
    lines[-1]["evaluated_share"] = 0.5
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_page_has_figures_facts_and_ways_to_the_reports(three_seeds: list[Path], tmp_path: Path) -> None:
    place = tmp_path / "my pages" / "c.html"
    for run in three_seeds:
        with_rounds(run, [20.0, None, 40.0 if "i2pfl" in run.name else 30.0, 90.0])
        results = json.loads((run / "results.json").read_text())  # whose mean is of other rounds
        (run / "results.json").write_text(json.dumps(results | {"unscored": {}}))
    renamed = three_seeds[0].rename(three_seeds[0].with_name("odd name #1&"))
    (renamed / "report.html").write_text("")
    runs = [renamed, *three_seeds[1:]]
    table = compare(runs)
    page = _Page()
    page.feed(table.html(place))
    assert page.open == [] and page.links == ["../runs/odd%20name%20%231%26/report.html"]
    assert (place.parent / unquote(page.links[0])).resolve() == renamed / "report.html"
    labels = page.labels
    starts = [label.split(":")[0] for label in labels]
    assert starts == ["AVG - fedavg", "AVG over the rounds", "AVG", "scan", "street", "WORST"]
    assert "mean of the last" in labels[0] and "i2pfl +2.00 (-0.48 to +4.48)" in labels[0]
    assert "fedavg 52.00 (50.00 to 54.00); i2pfl 54.00 (51.35 to 56.65)" in labels[2]
    # A round without a domain, and one scored on a part, are no points of a curve.
    assert labels[1] == "AVG over the rounds: fedavg 30.00 in round 3; i2pfl 40.00 in round 3."
    fields = dict(zip(page.terms["dt"], page.terms["dd"], strict=True))
    assert (
        fields | {"rounds": "20", "network": "cnn", "nodes": "2", "test images": "not recorded", "seeds": "3"} == fields
    )
    with undrawn():
        assert _Page.read(table.html()).links == []  # nobody knows from where
        assert "swipe it sideways" in table.html()
        again = _Page.read(compare(keep(runs, tmp_path / "kept")).html(place))
    assert (again.labels, again.links) == (labels, [])


def test_a_folder_that_is_not_utf_8_is_linked(three_seeds: list[Path], tmp_path: Path) -> None:
    renamed = three_seeds[0].rename(os.fsdecode(os.fsencode(three_seeds[0]) + b"\xff"))
    (renamed / "report.html").write_text("")
    runs = [renamed, *three_seeds[1:]]
    with undrawn():
        page = compare(runs).html(tmp_path / "c.html")
    assert page.encode() and f"{three_seeds[0].name}%FF/report.html" in page and f"{three_seeds[0].name}\\xff<" in page
    compare(runs).to_board(tmp_path / "b.html")
    assert "\\udcff" in (tmp_path / "b.html").read_text(encoding="utf-8")


def test_many_rows_have_small_curves_or_no_figures(make_run: MakeRun) -> None:
    runs = []
    for i in range(10):
        runs.append(make_run("i2pfl", 0, two(50 + i, 40), flat={"set": f"{SCAN_STREET} method.tau={i + 1}"}))
        with_rounds(runs[-1], [20.0, 30.0 + i, 0.0])
    table = compare(runs)
    (curves,) = [figure for figure in figures.plots(table.numbers).overall if "over the rounds" in figure.svg]
    assert "i2pfl tau=10.0 39.00 in round 2" in curves.svg
    rows = table.numbers.rows * 7
    assert figures.plots(replace(table.numbers, rows=rows)) == figures.Figures(
        lacking=["More than 60 rows: no figures."]
    )
    (runs[0] / "metrics.jsonl").unlink()
    assert figures.plots(compare(runs[:1]).numbers).lacking == [
        "No curves over the rounds: the files of these runs have none."
    ]


def test_curves_and_dots_show_the_baseline_of_the_row_s_own_group(make_run: MakeRun) -> None:
    """Ten rows in three groups, whose names are cut at the same place; the last group has no baseline."""
    groups = (("fedavg", "fedprox", "i2pfl", "fpl"), ("fedavg", "fedprox", "i2pfl"), ("i2pfl", "i2pfl", "i2pfl"))
    runs = []
    for group, methods in enumerate(groups):
        for i, method in enumerate(methods):
            given = f"{SCAN_STREET} train.lr=0.01 train.batch_size={8 + group} train.momentum=0.{5 + group}"
            given += f" method.tau=0.{i + 1}" * (group == 2)
            runs.append(make_run(method, 0, two(50 + 10 * group + i, 40), flat={"set": given}))
            with_rounds(runs[-1], [20.0 + 10 * group, 30.0 + 10 * group + i, 0.0])
    numbers = compare(runs, allow_different=True).numbers
    plotted = figures.plots(numbers)
    (curves,) = [plot for plot in plotted.overall if plot.name == "curves"]
    panels = [axes for axes in curves.figure.axes if axes.get_visible()]
    expected = {row.group: 30.0 + 10 * i for i, row in enumerate(row for row in numbers.rows if row.is_baseline)}
    assert len(expected) == 2
    for row, axes in zip(numbers.rows, panels, strict=True):
        drawn = [float(np.asarray(line.get_ydata())[-1]) for line in axes.lines if line.get_color() == GRID]
        assert drawn == ([] if row.is_baseline or row.group not in expected else [expected[row.group]])
    titles = [axes.get_title(loc="left") for axes in panels]
    assert len({*titles}) == 10 and titles[0] == "i2pfl tau=0.1 [1]"
    assert "Dashed: fedavg of the row's group." in curves.caption
    assert curves.figure.get_supylabel() == "AVG (%)"
    ticks = [label.get_text() for label in plotted.columns[1].figure.axes[0].get_yticklabels()]
    groups = plotted.lacking[0]
    assert len({*ticks}) == 10 and groups.startswith("Groups: ")
    for place, name in enumerate(dict.fromkeys(row.group for row in numbers.rows), 1):
        assert f"[{place}] {name}" in groups
    alone = figures.plots(compare(runs[-3:]).numbers)
    assert not any("Dashed" in plot.caption for plot in (*alone.overall, *alone.columns))
    assert not any(text.startswith("Groups") for text in alone.lacking)


def test_words_of_others_move_no_cursor_and_fill_no_table(make_run: MakeRun) -> None:
    runs = [make_run(m, 0, two(1, 2), recorded={"git": f"\x1b[2J\nAVG 100 {m}"}) for m in ("fedavg", "i2pfl")]
    table = compare(runs)
    for text in (table.text(), table.markdown()):
        assert "not the same git" in text
        assert all(line.isprintable() for line in text.splitlines())
    file = runs[0] / "results.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"domains": {f"\x1b[2J{i}": 1.0 for i in range(900)}}))
    with pytest.raises(ConfigError, match="domains: Dictionary should have at most 500 items") as caught:
        compare(runs)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_words_of_others_are_escaped(make_run: MakeRun) -> None:
    runs = [
        make_run("fedavg", 0, two(1, 2), recorded={"git": "<script>alert(1)</script>|"}),
        make_run("i2pfl", 0, two(1, 2), recorded={"git": "b"}),
    ]
    table = compare(runs)
    assert "<script>" not in table.html() and "&lt;script&gt;" in table.html()
    assert "<script>" not in table.markdown()


@pytest.mark.usefixtures("undrawn_figures")
def test_the_command(three_seeds: list[Path], tmp_path: Path, fedshift: Command) -> None:
    page, table = tmp_path / "c.html", tmp_path / "c.csv"
    code, out, _ = fedshift("compare", *three_seeds, "--keep", tmp_path / "kept")
    assert code == 0 and f"wrote 6 files into {tmp_path / 'kept'}" in out
    code, out, _ = fedshift("compare", *three_seeds, "--html", page, "--table-csv", table)
    assert code == 0 and "+2.00 ± 1.00" in out and f"wrote {page}" in out
    assert page.read_text() == compare(three_seeds).html() and table.read_text() == compare(three_seeds).csv()
    code, out, _ = fedshift("compare", three_seeds[0].parent, "--json")
    assert code == 0 and json.loads(out)["columns"] == ["scan", "street", "AVG", "STD", "WORST"]
    code, out, err = fedshift("compare", three_seeds[0], "--paper", "nothing")
    assert (code, out) == (1, "") and err.startswith("error: --paper: unknown table 'nothing'")
    code, _, err = fedshift("compare", three_seeds[0], "--csv", tmp_path / "no" / "c.csv")
    assert code == 1 and "cannot write" in err
    code, out, _ = fedshift("papers")
    assert code == 0 and "f2dc.table1b" in out


@pytest.mark.usefixtures("undrawn_figures")
def test_the_python_example_of_the_page_writes_what_it_says(
    three_seeds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "guide" / "compare.md").read_text(encoding="utf-8").partition("## From Python\n")[2]
    code = "\n".join(line.removeprefix("    ") for line in text.splitlines() if line.startswith("    "))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    exec(compile(code, "compare.md", "exec"), {})
    table = compare(three_seeds)
    assert (tmp_path / "page.html").read_text() == table.html(tmp_path / "page.html")
    assert (tmp_path / "runs.csv").read_text() == table.runs_csv()


def test_kept_files_make_the_same_table_and_tell_no_local_path(
    three_seeds: list[Path], make_run: MakeRun, tmp_path: Path
) -> None:
    unfinished = make_run("fedprox", 0, two(1, 2), flat={"set": SCAN_STREET})
    (unfinished / "results.json").unlink()
    for run in three_seeds:
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["resolved"]["dataset"]["data_dir"] = str(tmp_path)
        config |= {"command": f"fedshift run data-dir={tmp_path}", "git": "abc"}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
    files = keep([tmp_path / "runs"], tmp_path / "kept")
    assert [file.name for file in files] == sorted(f"{run.name}.json" for run in three_seeds)
    assert not any(str(tmp_path) in file.read_text() for file in files)
    result = compare([tmp_path / "kept"]).numbers
    assert [(row.label, row.values, row.difference) for row in result.rows] == [
        (row.label, row.values, row.difference) for row in compare(three_seeds).numbers.rows
    ]
    assert keep([tmp_path / "runs"], tmp_path / "kept") == files  # once more, over them
    again = keep([tmp_path / "kept"], tmp_path / "copied")
    assert [file.read_text() for file in again] == [file.read_text() for file in files]


def test_of_files_that_a_run_names_the_names_alone_are_kept(make_run: MakeRun, tmp_path: Path) -> None:
    """Weights, plugins, and the values that a method asked for or a search replaced."""
    weights, plugin = f"{tmp_path}/net.safetensors", f"{tmp_path}/mine.py"
    run = make_run("fedavg", 0, two(1, 2), recorded={"asked": {"model.weights": [weights, ""], "train.lr": [0.1, 0.2]}})
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["resolved"]["model"] |= {"weights": weights, "weights_sha256": "ab" * 32}
    config["resolved"] |= {"plugins": [plugin], "tuned": {"model.weights": weights}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (file,) = keep([run], tmp_path / "kept")
    assert str(tmp_path) not in file.read_text()
    resolved = json.loads(file.read_text())["config"]["resolved"]
    assert (resolved["model"]["weights"], resolved["plugins"]) == ("net.safetensors", ["mine.py"])
    config["resolved"]["plugins"] = []  # a run whose code is here is checked in full
    for given_weights in (weights, "package:efficientnet-lite0"):
        config["resolved"]["model"]["weights"] = given_weights
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        keep([run], tmp_path / "kept")
        compare([tmp_path / "kept"])
        assert json.loads(file.read_text())["config"]["resolved"]["model"]["weights"] == Path(given_weights).name
    early = json.loads(file.read_text())  # of a version that kept the paths
    early["config"]["resolved"]["plugins"] = [plugin]
    file.write_text(json.dumps(early))
    (again,) = keep([file], tmp_path / "copied")
    assert str(tmp_path) not in again.read_text()


def test_runs_of_one_name_are_not_kept_over_each_other(
    three_seeds: list[Path], make_run: MakeRun, tmp_path: Path
) -> None:
    other = tmp_path / "other" / three_seeds[0].name
    shutil.copytree(three_seeds[0], other)
    with pytest.raises(ConfigError, match=f"two runs are named {other.name}"):
        keep([*three_seeds, other], tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_folder_for_kept_files_that_cannot_be_made_is_named(three_seeds: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"--keep: cannot write into {tmp_path / 'file'}"):
        keep(three_seeds, tmp_path / "file")


def test_runs_of_an_experiment_that_refuses_fedavg_compare(make_run: MakeRun) -> None:
    runs = [
        make_run(method, seed, two(60 + seed, 40 + seed), experiment="digits-small-heterogeneous")
        for method in ("local", "fedproto", "fedseproto") for seed in range(2)
    ]  # fmt: skip
    assert [row.label for row in compare(runs).numbers.rows] == ["fedseproto", "fedproto", "local"]


def test_rows_that_a_search_chose_stand_next_to_those_as_they_are(make_run: MakeRun) -> None:
    """One group though the learning rate differs; each kind is compared with FedAvg of its kind."""

    def tuned(method: str, text: str, was: str) -> dict[str, str]:
        return {"set": f"{SCAN_STREET} {text} 'tuned={{{was}}}'"}

    flat = {"set": SCAN_STREET}
    prox = tuned("fedprox", "train.lr=0.03 method.mu=0.5", "train.lr: 0.01, method.mu: 0.01")
    runs = [
        make_run("fedprox", 0, two(62, 44), flat=flat), make_run("fedprox", 0, two(66, 50), flat=prox),
        make_run("fedavg", 0, two(60, 40), flat=flat),
        make_run("fedavg", 0, two(64, 46), flat=tuned("fedavg", "train.lr=0.05", "train.lr: 0.01")),
    ]  # fmt: skip
    table = compare(runs)
    assert [(row.label, row.group) for row in table.numbers.rows] == [
        (label, "") for label in ("fedavg", "fedavg tuned", "fedprox", "fedprox tuned")
    ]
    differences = [row.difference and row.difference.difference.mean for row in table.numbers.rows]
    assert differences == [None, None, 3, 3]  # 53 less 50, and 58 less 55
    notes = " ".join(table.numbers.notes)
    assert "fedprox tuned, chosen on validation images: train.lr=0.03 (0.01), mu=0.5 (0.01)" in notes
    assert "to fedavg tuned, which had the same search" in notes
    other = tuned("fedprox", "train.lr=0.02 method.mu=0.1", "train.lr: 0.01, method.mu: 0.01")
    labels = [row.label for row in compare([*runs, make_run("fedprox", 0, two(1, 2), flat=other)]).numbers.rows]
    assert labels[-2:] == ["fedprox tuned train.lr=0.02 mu=0.1", "fedprox tuned train.lr=0.03 mu=0.5"]
    by_hand = make_run("fedprox", 0, two(1, 2), flat={"set": f"{SCAN_STREET} train.lr=0.03"})
    with pytest.raises(ConfigError, match=r"differ in more than method and seed.*train\.lr is"):
        compare([*runs, by_hand])


def test_each_row_is_compared_with_the_fedavg_that_is_stepped_as_it_is(make_run: MakeRun) -> None:
    """Else a method without a server optimizer would be held against FedAvg with one, in table and figure."""
    runs = [
        make_run(method, seed, two(base + gain + seed, base + gain), flat={"set": f"server.optimizer={stepped}"})
        for method, gain in (("fedavg", 0), ("fedprox", 1.5))
        for stepped, base in (("fedadam", 20), ("none", 50))
        for seed in range(3)
    ]  # fmt: skip
    runs += [
        make_run("f2dc", seed, two(53 + seed + 0.1 * seed, 53)) for seed in range(3)
    ]  # averages by domain, as neither does: in addition to the one that is stepped as it is
    table = compare(runs)
    rows = {row.label: row.difference for row in table.numbers.rows}
    assert rows["fedprox server.optimizer=none"].difference.mean == pytest.approx(1.5)  # type: ignore[union-attr]
    assert rows["fedprox server.optimizer=fedadam"].difference.mean == pytest.approx(1.5)  # type: ignore[union-attr]
    assert rows["f2dc"].difference.mean == pytest.approx(3.05)  # type: ignore[union-attr]
    notes = table.numbers.notes
    assert "difference to fedavg server.optimizer=none: f2dc, fedprox server.optimizer=none" in notes
    (title,) = [drawing.svg for drawing in figures.plots(table.numbers).overall if "AVG - fedavg" in drawing.svg]
    assert "fedprox server.optimizer=none +1.50" in title


@pytest.mark.usefixtures("undrawn_figures")
def test_a_figure_has_the_differences_of_the_table_where_a_search_chose(make_run: MakeRun) -> None:
    """The untuned FedAvg lacks a seed that the tuned one has."""
    searched = {"set": f"{SCAN_STREET} train.lr=0.05 'tuned={{train.lr: 0.01}}'"}
    runs = [make_run("fedavg", seed, two(60, 40 + seed), flat={"set": SCAN_STREET}) for seed in (0,)]
    runs += [make_run("fedavg", seed, two(64, 46 + seed), flat=searched) for seed in (0, 1)]
    runs += [make_run("fedprox", seed, two(66, 46 + seed), flat=searched) for seed in (0, 1)]
    table = compare(runs)
    assert "fedprox tuned +1.00" in table.html()


def test_runs_count_as_the_same_by_the_numbers_that_are_asked_for(make_run: MakeRun) -> None:
    """A run and its model scored again: other means of five rounds, one last round."""
    runs = [make_run("fedavg", 0, two(1, 2 + extra), final=two(4, 5), weights_sha256="w") for extra in (0, 1)]
    assert compare(runs, score="final").numbers.rows[0].values["AVG"].mean == 4.5
    with pytest.raises(ConfigError, match="comes twice"):
        compare(runs)
    same = [make_run("fedprox", 0, two(1, 2), final=two(4, 5 + extra), weights_sha256="w") for extra in (0, 1)]
    with pytest.raises(ConfigError, match="comes twice"):
        compare(same, score="final")


def test_a_run_and_its_model_scored_again_are_told_with_what_to_do(make_run: MakeRun) -> None:
    """A score of five rounds and one of the last alone; ``--score final``, which the message names, compares them."""
    first = make_run("fedavg", 0, two(1, 2), final=two(4, 5), name="trained", weights_sha256="w")
    marks = {"scored_again": {"run": "trained", "round": 3}}
    again = make_run("fedavg", 0, two(4, 5), name="again", recorded=marks, averaged_rounds=1, weights_sha256="w")
    with pytest.raises(ConfigError) as error:
        compare([first, again])
    text, remedy = str(error.value).splitlines()
    assert text.endswith("comes twice, with different numbers: trained and again")
    assert remedy.startswith("again is the model of trained scored again (fedshift rescore)")
    assert "compare with --score final, or without that folder" in remedy
    numbers = compare([first, again], score="final").numbers
    assert "again repeats trained with the same numbers and counts once" in numbers.notes


def test_a_kept_file_says_that_its_model_is_another_runs(make_run: MakeRun, tmp_path: Path) -> None:
    marks = {"scored_again": {"run": "handwritten-fedavg", "round": 3}}
    make_run("fedavg", 0, two(1, 2), recorded=marks)
    kept = keep([tmp_path / "runs"], tmp_path / "kept")
    for places in ([tmp_path / "runs"], kept):
        assert any("scored again (fedshift rescore)" in note for note in compare(places).numbers.notes)


def test_what_a_method_asks_in_an_experiment_of_ones_own_is_reported_by_the_run(make_run: MakeRun) -> None:
    """Nothing but the run knows it: ``asked`` of its config.yaml."""
    bn = {"set": f"{SCAN_STREET} model.name=cnn_bn model.bn=local"}
    requested = {"asked": {"model.bn": ["local", "average"], "model.name": ["cnn_bn", "cnn"]}}
    own = {"experiment": "mine"}

    def run(method: str, flat: dict[str, str], result: Mapping[str, Any]) -> Path:
        folder = make_run(method, 0, two(50, 40), flat=flat, recorded=result)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["resolved"] |= own
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        return folder

    plain = run("fedavg", {"set": SCAN_STREET}, {})
    table = compare([plain, run("fedbn", bn, requested)])
    assert [(row.label, row.group, row.difference is None) for row in table.numbers.rows] == [
        ("fedavg", "", True), ("fedbn", "", False),
    ]  # fmt: skip
    assert "fedbn, as the method or its experiment asks: model.bn=local, model.name=cnn_bn" in table.numbers.notes
    with pytest.raises(ConfigError, match=r"model\.bn is average .* and local"):
        compare([plain, run("fedbn", bn, {})])
    with pytest.raises(ConfigError, match=r"asked\.model\.bn"):
        compare([plain, run("fedbn", bn, {"asked": {"model.bn": "local"}})])


def test_no_row_is_no_table(make_run: MakeRun) -> None:
    with pytest.raises(ConfigError, match="--scored personal: no run was scored so, and none is of fedavg"):
        compare([make_run("fedprox", 0, two(1, 2))], scored="personal")


def test_files_next_to_the_runs_that_are_no_json_are_passed_over(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("fedavg", 0, two(1, 2))
    (tmp_path / "runs" / "sweep.json").write_text('{"points": [')
    assert len(compare([tmp_path / "runs"]).numbers.rows) == 1


@pytest.mark.usefixtures("undrawn_figures")
def test_the_pages_cells_break_so_that_the_last_columns_are_in_sight(make_run: MakeRun) -> None:
    runs = [make_run(m, s, two(50 + s, 40)) for m in ("fedavg", "i2pfl") for s in range(2)]
    page = compare(runs).html()
    assert "50.50 ± 0.71" in _Page.read(page).cells and "#numbers td { white-space: normal }" in page
    assert '50.50 <span class="kept">± 0.71</span>' in page
    assert words("25.34 ± 1.66 art_painting") == [[("25.34", False)], [("± 1.66", True)], [("art_painting", False)]]
    assert words("north-county-hospital<") == [[(part, True) for part in ("north-", "county-", "hospital<")]]
    assert words("x" * 40) == [[("x" * n, True) for n in (16, 16, 8)]]


def test_titles_of_figures_are_not_cut() -> None:
    name = "north-county-hospital of the university, outpatients"
    assert titled(name) == name and titled(name, 22).replace("\n", " ") == name
    assert "\n" in titled(name, 22) and titled("word " * 90, 10).endswith("…")


# --- tasks, rounds, images ------------------------------------------------------------------------------------


def test_each_task_has_its_own_best(make_run: MakeRun) -> None:
    """``local`` scores personal models: its numbers are no better or worse than those of a global model."""
    flat = {"set": SCAN_STREET}
    scores = (("fedavg", two(60, 40)), ("i2pfl", two(50, 45)), ("local", two(90, 80)), ("fedproto", two(95, 70)))
    table = compare([make_run(method, 0, domains, flat=flat) for method, domains in scores])
    best = {row.method: row.best - {"STD", "WORST"} for row in table.numbers.rows}
    assert best == {"fedavg": {"scan", "AVG"}, "i2pfl": {"street"}, "local": {"street", "AVG"}, "fedproto": {"scan"}}
    result = "marked: the best mean of a column, within each task (global, personal); not a test"
    assert any(note.startswith(result) for note in table.numbers.notes)
    assert sum("**60.00**" in line for line in table.markdown().splitlines()) == 1
    assert "90.00*" not in table.text() and "95.00*" in table.text() and "60.00*" in table.text()
    alone = compare([make_run("fedavg", 1, two(60, 40), flat=flat), make_run("local", 1, two(90, 80), flat=flat)])
    assert not any(row.best for row in alone.numbers.rows)  # alone in its task: nothing to be better than


@pytest.mark.usefixtures("undrawn_figures")
@pytest.mark.parametrize(
    ("rounds", "called"),
    [
        ((5, 5), "mean of the last five rounds"),
        ((2, 2), "mean of the last 2 rounds"),
        ((1, 1), "last round"),
        ((2, 5), "mean of the last 2 to 5 rounds"),
    ],
)
def test_a_title_says_over_how_many_rounds_is_averaged(make_run: MakeRun, rounds: tuple[int, int], called: str) -> None:
    both = zip(("fedavg", "i2pfl"), rounds, strict=True)
    runs = [make_run(m, 0, two(60, 40), flat={"set": SCAN_STREET}, averaged_rounds=n) for m, n in both]
    table = compare(runs)
    assert table.numbers.title.endswith(f"(%), {called}")
    for text in (" ".join(table.text().split()), table.markdown(), table.html()):
        assert called in text and ("last five" in text) is (called == "mean of the last five rounds")


def test_a_title_says_which_rounds_are_averaged_where_they_are_not_the_last_ones(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """Runs of 100 rounds that were scored every ten: the mean is over the rounds 60 to 100."""
    flat = {"set": f"{SCAN_STREET} evaluate.every=10 evaluate.last=1", "rounds": 100}

    def lines(folder: Path, rounds: int, scored: Collection[int]) -> None:
        accuracies = [two(60, 40) if number in scored else None for number in range(1, rounds + 1)]
        full = [{"round": number, "accuracy": accuracy} for number, accuracy in enumerate(accuracies, 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in full))

    def title(*runs: Path, score: str = "last5") -> str:
        return compare(list(runs), score=score, allow_different=True).numbers.title.partition("(%), ")[2]

    apart = "mean of the last five scored rounds (60 to 100)"
    fedavg, i2pfl = (
        make_run(method, 0, two(60, 40), flat=flat, rounds=100, averaged_over=[*range(60, 101, 10)])
        for method in ("fedavg", "i2pfl")
    )
    lines(fedavg, 100, range(10, 101, 10))
    assert title(fedavg, i2pfl) == apart and title(fedavg, score="final") == "last round"
    assert title(*keep([fedavg], tmp_path / "kept")) == apart
    # An early end after round 27: 10 and 20 were scored. Its last scored round is not its last one.
    early = make_run("fedprox", 0, two(60, 40), flat=flat, rounds=27, averaged_rounds=2, averaged_over=[10, 20])
    assert title(early) == "mean of the last 2 scored rounds (10 and 20)"
    numbers = compare([fedavg, i2pfl, early]).numbers
    assert numbers.title.endswith("(%), mean of the last 2 to 5 scored rounds")
    assert "averaged rounds: 10 and 20 (fedprox), 60 to 100 (fedavg; i2pfl)" in numbers.notes
    once = make_run("fedsr", 0, two(60, 40), flat=flat, rounds=17, averaged_rounds=1, averaged_over=[10])
    assert title(once) == "last scored round (10)"
    # A run that was continued has a scored round where today's settings have none: 25, once its last.
    over = {"averaged_rounds": 4, "averaged_over": [10, 20, 25, 28]}
    longer = make_run("moon", 0, two(60, 40), flat=flat | {"rounds": 28}, rounds=28, **over)
    lines(longer, 28, {10, 20, 25, 28})
    assert title(longer) == title(*keep([longer], tmp_path / "longer")) == "mean of the last 4 scored rounds (10 to 28)"
    usual = make_run("fedavg", 1, two(60, 40), flat=flat | {"set": f"{SCAN_STREET} evaluate.every=10"})
    both = compare([fedavg, usual], allow_different=True).numbers
    assert both.title.endswith("mean of the last five scored rounds")
    (note,) = [note for note in both.notes if note.startswith("averaged rounds: ")]
    assert "the last ones (fedavg [evaluate.last=5" in note and "60 to 100 (fedavg [" in note


def test_published_rounds_that_are_far_apart_are_named() -> None:
    results = ROOT / "docs" / "results"
    (long,) = [file for file in (results / "pacs-pretrained-pixels-long").iterdir() if file.suffix == ".json"]
    assert compare([long]).numbers.title == "pacs: top-1 accuracy (%), mean of the last five scored rounds (60 to 100)"
    short = [file for file in (results / "pacs-pretrained-pixels").iterdir() if "mixstyle" in file.name]
    assert compare(short).numbers.title.endswith(", mean of the last 2 scored rounds (5 and 10)")


@pytest.mark.usefixtures("undrawn_figures")
def test_distinct_test_images_are_reported(make_run: MakeRun) -> None:
    def described(images: int | None) -> dict[str, Any]:
        content = figures_of(60, 40, 180)
        for one in content["domains"].values():
            one["images"] = images
        return content

    flat = {"set": SCAN_STREET}
    run = make_run("local", 0, two(60, 40), flat=flat, figures=described(90))
    assert "test images: scan 90 (180 scores), street 90 (180 scores)" in compare([run]).numbers.notes
    assert "180 (360 scores)" in compare([run]).html()


def test_the_order_behind_statistics_counts_where_they_are_shown(make_run: MakeRun) -> None:
    """Listed images raise scores by own statistics, and change nothing of averaged ones."""
    own = {"bn=own": two(60, 50)}
    network = f"{SCAN_STREET} model.name=cnn_bn"
    shuffled, listed = ({"set": f"{network} evaluate.bn=[averaged,own] evaluate.bn_order={order}"}
                        for order in ("shuffled", "listed"))  # fmt: skip
    runs = [
        make_run("fedavg", 0, two(50, 40), flat=shuffled, others=own),
        make_run("fedprox", 0, two(51, 41), flat=listed, others=own),
        make_run("moon", 0, two(52, 42), flat={"set": network}),
    ]
    assert [row.label for row in compare(runs).numbers.rows] == ["fedavg", "fedprox", "moon"]
    with pytest.raises(ConfigError, match=r"evaluate\.bn_order is (listed|shuffled)"):
        compare(runs[:2], score="bn=own")
    (note,) = [note for note in compare(runs[:2], score="bn").numbers.notes if "bn_order" in note]
    assert note.startswith("own and re-estimated statistics do not compare: evaluate.bn_order is listed (fedprox-0-1)")
    assert not [note for note in compare(runs[1:2], score="bn").numbers.notes if "bn_order" in note]


def test_an_accuracy_of_some_of_a_domains_test_images_is_told_of(make_run: MakeRun) -> None:
    flat = {"set": SCAN_STREET}
    missing = {"4": {"scan": [45, 90]}, "5": {"scan": [45, 90]}}
    runs = [
        make_run("fedavg", 0, two(50, 40), flat=flat),
        make_run("fedprox", 0, two(60, 40), flat=flat, missing_tests=missing),
    ]
    (note,) = [note for note in compare(runs).numbers.notes if "test images, as" in note]
    assert note == (
        "fedprox, seed 0: the run is degraded: scan: the accuracy is of 45 of 90 test images, as not all its "
        "nodes were scored, in 2 of 5 averaged rounds"
    )
