"""Rows of `fedshift compare`: means, differences, groups and notes, on runs whose numbers are worked out here."""

import csv
import io
import json
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from support import Command

from fedshift.lab.tables.compare import board, compare, figures, keep
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results import loading
from fedshift.lab.tables.results.statistics import paired, spread
from fedshift_core.errors import ConfigError
from fedshift_core.intervals import interval
from fedshift_core.wire.site_figures import OVERALL as SITE_FIGURES

MakeRun = Callable[..., Path]


def numbers(runs: list[Path], **options: Any) -> Numbers:
    return compare(runs, **options).numbers


def labels(runs: list[Path], **options: Any) -> list[str]:
    return [row.label for row in numbers(runs, **options).rows]


def notes(runs: list[Path], *words: str, **options: Any) -> list[str]:
    """Return the notes with one of these words."""
    return [note for note in numbers(runs, **options).notes if any(word in note for word in words)]


def figures_of(scan: float, street: float, n: int = 90) -> dict[str, Any]:
    """Return the figures of a run with these scores by any measure."""

    def of(value: float) -> dict[str, Any]:
        short = dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "auc", "ece"), value)
        return {"n": n, **short, "per_class": {"recall": [value], "precision": [None], "n": [n]}, "confusion": [[n]]}

    return {"round": 5, "classes": ["x"], "domains": {"scan": of(scan), "street": of(street)}, "overall": of(scan)}


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
    assert result is not None and (result.difference.mean, result.difference.std) == (2, 1)
    assert result.p == pytest.approx(1 - math.sqrt(12) / math.sqrt(14)) == pytest.approx(0.0742, abs=5e-5)
    reach = 4.302653 / math.sqrt(3)  # t of 0.975 at two degrees of freedom
    assert result.interval == pytest.approx((2 - reach, 2 + reach), abs=1e-5)
    assert fedavg.difference is None
    # The best: scan 62 against (60 + 64 + 65) / 3 = 63; street 42 against 45; STD 14.14 against 18 / sqrt(2).
    assert i2pfl.best == {"scan", "street", "AVG", "STD", "WORST"} and fedavg.best == set()


def test_an_interval_is_without_zero_where_p_is_small_and_two_seeds_have_neither() -> None:
    clear = paired({0: 61.0, 1: 63.0, 2: 62.0}, {0: 50.0, 1: 52.5, 2: 51.5})
    assert clear.p is not None and clear.p < 0.05 and clear.interval is not None and clear.interval[0] > 0
    two = paired({0: 1.0, 1: 3.0}, {0: 0.0, 1: 1.0})
    assert (two.interval, two.p, two.difference.std) == (None, None, pytest.approx(math.sqrt(0.5)))
    assert spread([1.0]).std is None and spread([]).mean is None


@given(st.lists(st.floats(0, 100), min_size=3, max_size=6), st.floats(-50, 50))
def test_equal_differences_have_no_p(base: list[float], shift: float) -> None:
    difference = paired({i: value + shift for i, value in enumerate(base)}, dict(enumerate(base)))
    assert difference.p is None
    assert difference.difference.mean == pytest.approx(shift, abs=1e-9)


@pytest.mark.parametrize(
    ("more", "points", "of_two"),
    [({}, "2.7", "3.8"), ({"patients": 10}, "8.0", "11.3"), ({"patients": 10, "resamples": 1000}, "2.7", "3.8")],
)
def test_the_error_of_the_test_images_that_all_seeds_share_is_named(
    run: MakeRun, more: dict[str, int], points: str, of_two: str
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
    sites = {"round": 5, "sites": [scan]}
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
    assert f2dc.difference is not None and f2dc.difference.difference.mean is None
    assert notes(runs, "no average over the rest") == [
        "fedavg, seed 0; f2dc, seeds 0, 1: no street; no average over the rest is taken",
        "i2pfl, seed 1: no scan; no average over the rest is taken",
    ]


def test_unequal_seeds_are_paired_on_the_common_ones_and_reported(three_seeds: list[Path], run: MakeRun) -> None:
    extra = run("fedavg", 7, 10, 10)
    table = numbers([*three_seeds[:2], extra, *three_seeds[3:]])
    result = table.rows[1].difference
    assert result is not None and result.seeds == (0, 1) and result.difference.mean == 2
    assert "i2pfl: seeds 0, 1, 2, fedavg 0, 1, 7: paired on 0, 1" in table.notes
    others = [run(name) for name in ("fedprox", "moon")]
    assert notes([*three_seeds[:2], *others], "fedprox, moon: seeds 0, fedavg 0, 1: paired on 0")


def test_each_task_has_its_own_best(run: MakeRun) -> None:
    """``local`` scores personal models: its numbers are no better or worse than those of a global model."""
    scores = {"fedavg": (60, 40), "i2pfl": (50, 45), "local": (90, 80), "fedproto": (95, 70)}
    table = compare([run(method, 0, *values) for method, values in scores.items()])
    best = {row.method: row.best - {"STD", "WORST"} for row in table.numbers.rows}
    assert best == {"fedavg": {"scan", "AVG"}, "i2pfl": {"street"}, "local": {"street", "AVG"}, "fedproto": {"scan"}}
    assert "90.00*" not in table.text() and "95.00*" in table.text() and "60.00*" in table.text()
    alone = numbers([run("fedavg", 1), run("local", 1)])
    assert not any(row.best for row in alone.rows)  # alone in its task: nothing to be better than


def test_one_task_alone_has_the_rows_that_score_it_named_as_among_all(run: MakeRun) -> None:
    shared = run("fedproto", given="method.share_weights=true", evaluated="global model")
    runs = [run("fedavg"), run("fedproto"), shared, run("local"), run("fpl")]
    assert labels(runs, scored="global") == ["fedavg", "fedproto share_weights=true", "fpl"]
    assert notes(runs, "left out", scored="global") == [
        "left out, not scored global: fedproto share_weights=false, local"
    ]
    assert labels(runs, scored="personal") == ["fedavg", "fedproto share_weights=false", "local"]


# --- rows and groups ------------------------------------------------------------------------------------------


def test_differing_settings_are_named_with_their_values_or_make_groups(run: MakeRun) -> None:
    runs = [
        run("fedavg", 0, name="a"), run("i2pfl", 0, name="b"), run("fedavg", given="train.lr=0.5 rounds=7", name="c"),
    ]  # fmt: skip
    with refused(ConfigError, "rounds is 20 (a, b) and 7 (c)", "train.lr is 0.01 (a, b) and 0.5 (c)"):
        compare(runs)
    rows = {(row.group, row.label): row for row in numbers(runs, allow_different=True).rows}
    assert list(rows) == [
        ("rounds=20, train.lr=0.01", "fedavg"), ("rounds=20, train.lr=0.01", "i2pfl"),
        ("rounds=7, train.lr=0.5", "fedavg"),
    ]  # fmt: skip
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


def test_parameters_of_a_sweep_and_modules_make_rows(run: MakeRun) -> None:
    runs = [run("i2pfl", s, given=f"method.tau={tau}") for tau in (0.1, 0.02) for s in (0, 1)]
    runs += [run("fedavg"), run("fedavg", given="modules.name=f2dc")]
    assert [(row.label, row.seeds, row.is_baseline) for row in numbers(runs).rows] == [
        ("fedavg modules=f2dc", (0,), False), ("fedavg modules=none", (0,), True),
        ("i2pfl tau=0.02", (0, 1), False), ("i2pfl tau=0.1", (0, 1), False),
    ]  # fmt: skip


def test_of_many_parameters_a_row_names_those_that_are_not_as_the_experiment_has_them(run: MakeRun) -> None:
    ways = ["", "method.tau=0.02", "method.lambda1=1", "method.lambda2=0.5", "method.tau=0.02 method.lambda1=1"]
    runs = [run("i2pfl", given=way) for way in ways]
    assert labels(runs) == [
        "i2pfl", "i2pfl tau=0.02 lambda1=1.0", "i2pfl tau=0.02", "i2pfl lambda1=1.0", "i2pfl lambda2=0.5"
    ]  # fmt: skip
    assert notes(runs, "does not name") == ["i2pfl, where a row does not name it: tau=0.07, lambda1=10.0, lambda2=1.0"]
    for folder in runs:  # of an experiment of someone else's nothing is known
        content = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(content.replace("experiment: handwritten", "experiment: mine"))
    assert "i2pfl tau=0.07 lambda1=10.0 lambda2=1.0" in labels(runs) and not notes(runs, "does not name")


def test_what_no_row_names_is_reported_where_the_experiment_has_another_value(run: MakeRun) -> None:
    runs = [run("fedavg"), *(run("i2pfl", seed, given="method.tau=0.02") for seed in (0, 1))]
    assert labels(runs) == ["fedavg", "i2pfl"]
    assert notes(runs, "in all its rows") == ["i2pfl, in all its rows that have it: tau=0.02 (instead of 0.07)"]
    runs.append(run("i2pfl"))  # two rows, which name it
    assert "i2pfl tau=0.02" in labels(runs) and not notes(runs, "in all its rows")


def test_what_a_method_asks_in_an_experiment_of_ones_own_is_reported_by_the_run(run: MakeRun) -> None:
    """Nothing but the run knows it: ``asked`` of its config.yaml."""
    network = "model.name=cnn_bn model.bn=local"

    def of_mine(method: str, settings: str, **recorded: Any) -> Path:
        file = run(method, given=settings, recorded=recorded) / "config.yaml"
        file.write_text(file.read_text().replace("experiment: handwritten", "experiment: mine"))
        return file.parent

    plain = of_mine("fedavg", "")
    told = {"model.bn": ["local", "average"], "model.name": ["cnn_bn", "cnn"]}
    rows = numbers([plain, of_mine("fedbn", network, asked=told)])
    assert [(row.label, row.group, row.difference is None) for row in rows.rows] == [
        ("fedavg", "", True), ("fedbn", "", False),
    ]  # fmt: skip
    assert "fedbn, as the method or its experiment asks: model.bn=local, model.name=cnn_bn" in rows.notes
    with refused(ConfigError, "model.bn is average", "and local"):
        compare([plain, of_mine("fedbn", network)])
    with refused(ConfigError, "asked.model.bn"):
        compare([plain, of_mine("fedbn", network, asked={"model.bn": "local"})])


def test_runs_of_an_experiment_that_refuses_fedavg_compare(run: MakeRun) -> None:
    methods = ("local", "fedproto", "fedseproto")
    runs = [run(method, domains={"a": 1.0}, experiment="digits-small-heterogeneous") for method in methods]
    assert labels(runs) == ["fedseproto", "fedproto", "local"]


@pytest.mark.usefixtures("undrawn_figures")
def test_rows_that_a_search_chose_stand_next_to_those_as_they_are(run: MakeRun) -> None:
    """One group though the learning rate differs; each kind is compared with FedAvg of its kind, in the figure too."""

    def tuned(method: str, scan: float, street: float, text: str, was: str, seed: int = 0) -> Path:
        return run(method, seed, scan, street, given=f"{text} 'tuned={{{was}}}'")

    rate = "train.lr=0.05", "train.lr: 0.01"
    was = "train.lr: 0.01, method.mu: 0.01"
    runs = [
        run("fedprox", 0, 62, 44), tuned("fedprox", 66, 50, "train.lr=0.03 method.mu=0.5", was),
        run("fedavg", 0, 60, 40), tuned("fedavg", 64, 46, *rate), tuned("fedavg", 64, 47, *rate, seed=1),
    ]  # fmt: skip
    table = compare(runs)
    assert [(row.label, row.group) for row in table.numbers.rows] == [
        (label, "") for label in ("fedavg", "fedavg tuned", "fedprox", "fedprox tuned")
    ]
    differences = [row.difference and row.difference.difference.mean for row in table.numbers.rows]
    assert differences == [None, None, 3, 3]  # 53 less 50, and 58 less 55
    assert "fedprox tuned, chosen on validation images: train.lr=0.03 (0.01), mu=0.5 (0.01)" in table.numbers.notes
    assert "fedprox tuned +3.00" in table.html()
    other = tuned("fedprox", 1, 2, "train.lr=0.02 method.mu=0.1", was)
    assert labels([*runs, other])[-2:] == [
        "fedprox tuned train.lr=0.02 mu=0.1", "fedprox tuned train.lr=0.03 mu=0.5"
    ]  # fmt: skip
    with refused(ConfigError, "train.lr is"):
        compare([*runs, run("fedprox", given="train.lr=0.03")])  # by hand


@pytest.mark.usefixtures("undrawn_figures")
def test_each_row_is_compared_with_the_fedavg_that_is_stepped_as_it_is(run: MakeRun) -> None:
    """Else a method without a server optimizer would be held against FedAvg with one, in table and figure."""
    runs = [
        run(method, seed, base + gain + seed, base + gain, given=f"server.optimizer={stepped}")
        for method, gain in (("fedavg", 0), ("fedprox", 1.5))
        for stepped, base in (("fedadam", 20), ("none", 50))
        for seed in range(3)
    ]
    runs += [run("f2dc", seed, 53 + 1.1 * seed, 53) for seed in range(3)]  # averages by domain, as neither does
    table = numbers(runs)
    gains = {row.label: row.difference.difference.mean for row in table.rows if row.difference}
    assert gains["fedprox server.optimizer=none"] == pytest.approx(1.5)
    assert gains["fedprox server.optimizer=fedadam"] == pytest.approx(1.5)
    assert gains["f2dc"] == pytest.approx(3.05)
    assert "difference to fedavg server.optimizer=none: f2dc, fedprox server.optimizer=none" in table.notes
    (title,) = [drawing.svg for drawing in figures.plots(table).overall if "AVG - fedavg" in drawing.svg]
    assert "fedprox server.optimizer=none +1.50" in title


# --- scores and rounds ----------------------------------------------------------------------------------------


def test_scores(run: MakeRun) -> None:
    two = {name: {"scan": value, "street": value + 20} for name, value in (("final", 3), ("best", 5), ("kept", 7))}
    clients = {"lta": 90, "ata": {"scan": 10, "street": 30}, "gata": 20, "gasa": 80, "cprr": 25}
    one = run(
        "fedavg", 0, 1, 2, final=two["final"], best_test={"round": 1, "domains": two["best"]},
        best_validation={"round": 2, "domains": two["kept"]},
        client_models=clients | {"by_domain": {"scan": 50, "street": 70}},
    )  # fmt: skip
    scan = {
        score: numbers([one], score=score).rows[0].values["scan"].mean
        for score in ("last5", "final", "best", "validation")
    }
    assert scan == {"last5": 1, "final": 3, "best": 5, "validation": 7}
    assert "chosen after seeing test results" in compare([one], score="best").text()
    values = numbers([one], score="clients").rows[0].values
    assert {name: value.mean for name, value in values.items()} == {
        "ATA scan": 10, "ATA street": 30, "LTA": 90, "GASA": 80, "CPRR": 25, "GATA": 20,
        "all on scan": 50, "all on street": 70, "all on AVG": 60,
    }  # fmt: skip
    plain = run("i2pfl")
    for score in ("validation", "clients"):
        with refused(ConfigError, f"--score {score}", plain.name):
            compare([plain, one], score=score)


def test_figures_are_scores(run: MakeRun, tmp_path: Path) -> None:
    runs = [run("fedavg", figures=figures_of(50, 30)), run("i2pfl", figures=figures_of(20, 70))]
    keep(runs, tmp_path / "kept")
    for score in ("balanced_accuracy", "macro_f1", "auc", "ece"):
        table = compare(runs, score=score)
        first, second = table.numbers.rows
        assert (first.by_seed[0]["street"], second.by_seed[0]["AVG"]) == (30, 45)
        # scan 50 and 20, street 30 and 70: of errors the lowest is the best and the highest the worst.
        error = score == "ece"
        assert ("scan" in first.best, "street" in second.best) == (not error, not error)
        assert (first.values["WORST"].mean, first.worst) == ((50, "scan") if error else (30, "street"))
        assert compare([tmp_path / "kept"], score=score).markdown() == table.markdown()
    assert "confusion" not in next((tmp_path / "kept").iterdir()).read_text()
    images = figures_of(1, 2, n=7)
    images["domains"]["scan"]["images"] = 5
    assert notes([*runs, run("fedbn", figures=images)], "test images") == [
        "test images of fedavg, i2pfl: scan 90, street 90", "test images of fedbn: scan 5 (7 scores), street 7",
    ]  # fmt: skip


def test_numbers_of_the_kept_round_and_of_the_last_do_not_stand_in_one_group(run: MakeRun) -> None:
    settings = "allocation.validation_fraction=0.2"
    chosen = {"best_validation": {"round": 3, "domains": {"scan": 70, "street": 70}}}

    def pair(**recorded: Any) -> list[Path]:
        last = run("fedavg", given=settings, figures=figures_of(50, 30), recorded=recorded, **chosen)
        kept = run(
            "fedprox", given=f"{settings} keep=best-validation", figures=figures_of(50, 30) | {"round": 3},
            recorded=recorded, rounds=3, **chosen,
        )  # fmt: skip
        return [last, kept]

    runs = pair()
    for score in ("balanced_accuracy", "ece"):
        with refused(ConfigError, "round is last (fedavg-0-0) and best-validation (fedprox-0-1)"):
            compare(runs, score=score)
        rows = numbers(runs, score=score, allow_different=True).rows
        assert [(row.method, row.group, row.difference) for row in rows] == [
            ("fedprox", "round=best-validation", None), ("fedavg", "round=last", None)
        ]  # fmt: skip
    for score in ("last5", "final", "best", "validation"):
        assert numbers(runs, score=score).rows[1].difference is not None

    # All numbers of models that were scored again are of the round that was kept.
    again = pair(scored_again={"run": "another"})
    with refused(ConfigError, "round is last"):
        compare(again, score="final")
    assert numbers(again, score="validation").rows[1].difference is not None
    table = compare(again, score="final", allow_different=True)
    assert any("after their last round or the round that they kept" in note for note in table.numbers.notes)
    assert notes(again[1:], "after the round that they kept")
    rounds = {(line["method"], line["round"]) for line in csv.DictReader(io.StringIO(table.runs_csv()))}
    assert rounds == {("fedavg", "20"), ("fedprox", "3")}
    assert len(board.of_runs(loading.read(again).runs).tables) == 2


@pytest.mark.parametrize(
    ("rounds", "called"),
    [
        ((5, 5), "mean of the last five rounds"), ((2, 2), "mean of the last 2 rounds"), ((1, 1), "last round"),
        ((2, 5), "mean of the last 2 to 5 rounds"),
    ],
)  # fmt: skip
def test_a_title_says_over_how_many_rounds_is_averaged(run: MakeRun, rounds: tuple[int, int], called: str) -> None:
    runs = [run(method, averaged_rounds=n) for method, n in zip(("fedavg", "i2pfl"), rounds, strict=True)]
    assert numbers(runs).title.endswith(f"(%), {called}")


def test_a_title_says_which_rounds_are_averaged_where_they_are_not_the_last_ones(run: MakeRun, tmp_path: Path) -> None:
    """Runs of 100 rounds that were scored every ten: the mean is over the rounds 60 to 100."""

    def scored(method: str, rounds: int, every: Collection[int], **more: Any) -> Path:
        settings = f"evaluate.every=10 evaluate.last=1 rounds={max(rounds, 28) if rounds == 28 else 100}"
        folder = run(method, given=settings, rounds=rounds, **more)
        accuracy = {"scan": 50.0, "street": 40.0}
        full = [{"round": n, "accuracy": accuracy if n in every else None} for n in range(1, rounds + 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in full))
        return folder

    def title(*runs: Path, score: str = "last5") -> str:
        return numbers(list(runs), score=score, allow_different=True).title.partition("(%), ")[2]

    apart = "mean of the last five scored rounds (60 to 100)"
    fedavg = scored("fedavg", 100, range(10, 101, 10), averaged_over=[*range(60, 101, 10)])
    assert title(fedavg) == title(*keep([fedavg], tmp_path / "kept")) == apart
    assert title(fedavg, score="final") == "last round"
    # An early end after round 27: 10 and 20 were scored. Its last scored round is not its last one.
    early = scored("fedprox", 27, (10, 20), averaged_rounds=2, averaged_over=[10, 20])
    assert title(early) == "mean of the last 2 scored rounds (10 and 20)"
    assert notes([fedavg, early], "averaged rounds") == ["averaged rounds: 10 and 20 (fedprox), 60 to 100 (fedavg)"]
    once = scored("fedsr", 17, (10,), averaged_rounds=1, averaged_over=[10])
    assert title(once) == "last scored round (10)"
    # A run that was continued has a scored round where today's settings have none: 25, once its last.
    longer = scored("moon", 28, (10, 20, 25, 28), averaged_rounds=4, averaged_over=[10, 20, 25, 28])
    assert title(longer) == title(*keep([longer], tmp_path / "longer")) == "mean of the last 4 scored rounds (10 to 28)"


def test_batches_and_orders_of_test_images_are_reported_where_they_decide(run: MakeRun) -> None:
    """Listed images raise scores by own statistics, and change nothing of averaged ones."""
    of = {name: {"scan": 60, "street": 50} for name in ("bn=own", "bn=batch")}
    network = "model.name=cnn_bn images.eval_batch=32 evaluate.bn=[averaged,own,batch] evaluate.bn_order="
    runs = [run("fedavg", given=f"{network}shuffled", others=of), run("fedprox", given=f"{network}listed", others=of)]
    assert labels(runs) == ["fedavg", "fedprox"]
    for score, expected in (("bn=batch", True), ("bn", True), ("bn=own", False), ("last5", False)):
        assert bool(notes(runs[:1], "batches of 32 test images, which decide", score=score)) is expected, score
    with refused(ConfigError, "evaluate.bn_order is "):
        compare(runs, score="bn=own")
    (note,) = notes(runs, "bn_order", score="bn")
    assert f"evaluate.bn_order is listed ({runs[1].name})" in note and not notes(runs[1:], "bn_order", score="bn")


def test_an_accuracy_of_some_of_a_domains_test_images_is_named(run: MakeRun) -> None:
    missing = {"4": {"scan": [45, 90]}, "5": {"scan": [45, 90]}}
    (note,) = notes([run("fedavg"), run("fedprox", missing_tests=missing)], "test images, as")
    assert note.startswith("fedprox, seed 0: ")
    assert "scan: the accuracy is of 45 of 90 test images" in note and "in 2 of 5 averaged rounds" in note


# --- what is read, and what differs of it ---------------------------------------------------------------------


def test_another_state_of_the_source_that_changes_no_weight_is_reported_without_a_warning(run: MakeRun) -> None:
    old, new = {"git": "abc"}, {"git": "def"}
    runs = [
        run("fedavg", recorded=old, weights_sha256="same"), run("i2pfl", recorded=old), run("fpl", recorded=new),
    ]  # fmt: skip
    again = [*runs, run("fedavg", recorded=new, weights_sha256="same")]
    assert notes(again, "not the same git, but fedavg seed 0 ran with each and ended with the same weights")
    assert not numbers(again).warnings
    assert [warning.partition(":")[0] for warning in numbers(runs).warnings] == ["not the same git"]
    with refused(ConfigError, "seed 0 comes twice"):
        compare([*runs, run("fedavg", 0, 51, recorded=new, weights_sha256="other")])


def test_warnings_name_what_differs_and_equal_weights(run: MakeRun) -> None:
    runs = [
        run("fedavg", name="a", weights_sha256="same"),
        run("i2pfl", name="b", weights_sha256="same", recorded={"engine": "simulation", "git": "abc"}),
        run("fedprox", name="c", recorded={"versions": {"torch": "2"}}),
        run("fedproto", name="d", weights_sha256="start"),
        run("local", 0, 51, name="e", weights_sha256="start"),
    ]
    warnings = numbers(runs).warnings
    assert "fedavg and i2pfl ended with the same weights (seed 0): does one do nothing?" in warnings
    for start, end in (("engine", "simulation (b)"), ("git", "abc (b)"), ("torch", "2 (c)")):
        assert any(line.startswith(f"not the same {start}: ") and line.endswith(f"and {end}") for line in warnings)
    assert not any("local" in line and "weights" in line for line in warnings)


def test_a_repeated_seed_counts_once_and_another_number_is_refused(run: MakeRun) -> None:
    """By the number that is asked for: a run of which the last round alone is the same is no repetition."""
    runs = [run("fedavg", name=name, weights_sha256="w") for name in ("a", "b")]
    assert numbers(runs).rows[0].seeds == (0,)
    assert notes(runs, "b repeats a with the same numbers and counts once")
    of = {"final": {"scan": 50.0, "street": 40.0}, "weights_sha256": "w"}
    other = [runs[0], run("fedavg", 0, 1, 3, name="c", **of)]
    assert numbers(other, score="final").rows[0].values["AVG"].mean == 45
    with refused(ConfigError, "fedavg", "seed 0", "a and c"):
        compare(other)


def test_a_run_and_its_model_scored_again_compare_by_the_last_round(run: MakeRun, tmp_path: Path) -> None:
    """A score of five rounds and one of the last alone; the refusal names ``--score final``, which compares them."""
    last = {"scan": 4.0, "street": 5.0}
    first = run("fedavg", 0, 1, 2, final=last, name="trained", weights_sha256="w")
    marks = {"scored_again": {"run": "trained", "round": 3}}
    again = run("fedavg", 0, 4, 5, name="again", recorded=marks, averaged_rounds=1, weights_sha256="w")
    with refused(ConfigError, "trained and again", "again is the model of trained scored again", "--score final"):
        compare([first, again])
    assert notes([first, again], "again repeats trained with the same numbers and counts once", score="final")
    assert notes(keep([again], tmp_path / "kept"), "scored again")


def test_folders_files_and_unfinished_runs(run: MakeRun, tmp_path: Path) -> None:
    fedavg, i2pfl = run("fedavg"), run("i2pfl")
    keep([i2pfl], tmp_path / "kept")
    (fedavg.parent / "sweep.json").write_text('{"points": [')  # no run: passed over
    for paths in ([fedavg.parent], [fedavg, i2pfl, fedavg.parent], [fedavg / "results.json", tmp_path / "kept"]):
        assert labels(paths) == ["fedavg", "i2pfl"]
    (i2pfl / "results.json").unlink()
    assert notes([fedavg.parent], f"left out, not finished: {i2pfl.name}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "fedavg.log").write_text("round 1/1")  # a pattern like sweep-*/*fedavg* catches logs too
    for path, named in (
        (i2pfl, "no finished run"), (tmp_path / "nowhere", "there is no file or folder"),
        (tmp_path / "table.tex", "--latex > table.tex"), (tmp_path, "kept, empty, runs"), (tmp_path / "empty", "empty"),
        (tmp_path / "fedavg.log", "fedavg.log is no run"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="kept, runs" if path == tmp_path else named):
            compare([path])


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "results.json: "), ("[]", "results.json: content: "), ('{"method": "fedavg"}', "results.json: dataset: ")],
)
def test_broken_results_are_named(run: MakeRun, content: str, reason: str) -> None:
    folder = run("fedavg")
    (folder / "results.json").write_text(content)
    with refused(ConfigError, reason):
        compare([folder])


def test_a_kept_file_that_is_cut_off_is_named_and_other_json_is_not(
    three_seeds: list[Path], fedshift: Command, tmp_path: Path
) -> None:
    kept = keep(three_seeds, tmp_path / "kept")
    (tmp_path / "kept" / "costs.json").write_text("[1]")
    kept[-1].write_text(kept[-1].read_text()[:200])
    code, out, error = fedshift("compare", tmp_path / "kept")
    assert code == 1 and error == "error: runs that cannot be read were left out: 1\n"
    assert f"left out, cannot be read: {kept[-1].name}: " in " ".join(out.split()) and "costs.json" not in out
    assert [row.seeds for row in numbers([tmp_path / "kept"]).rows] == [(0, 1, 2), (0, 1)]
    (tmp_path / "alone").mkdir()
    kept[-1].rename(tmp_path / "alone" / "run.json")
    with refused(ConfigError, "run.json"):
        compare([tmp_path / "alone"])


def test_what_makes_no_table_is_refused(run: MakeRun) -> None:
    cases: list[tuple[list[Path], Mapping[str, Any], str]] = [
        ([run("fedavg")], {"score": "worst"}, "'worst'"),
        ([run("fedavg")], {"scored": "globl"}, "'globl'"),
        ([run("fedprox")], {"scored": "personal"}, "--scored personal"),
        ([run("fedavg"), run("i2pfl", nodes=[{"domain": "scan", "class_counts": [1]}] * 5)], {}, "nodes is 2"),
    ]
    folder, other = run("fedavg"), run("fedavg", 4)
    (folder / "results.json").write_bytes((other / "results.json").read_bytes())
    cases.append(([folder], {}, "seed 4"))
    for runs, options, named in cases:
        with refused(ConfigError, named):
            compare(runs, **options)


# --- kept files -----------------------------------------------------------------------------------------------


def test_kept_files_make_the_same_table_and_tell_no_local_path(three_seeds: list[Path], tmp_path: Path) -> None:
    """Of a data-dir, weights, plugins, and values that a method asked for or a search replaced, names are kept."""
    weights, plugin = f"{tmp_path}/net.safetensors", f"{tmp_path}/mine.py"
    whole = numbers(three_seeds).rows
    for folder in three_seeds:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config["resolved"]["dataset"]["data_dir"] = str(tmp_path)
        config |= {"command": f"fedshift run data-dir={tmp_path}", "git": "abc"}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    files = keep([tmp_path / "runs"], tmp_path / "kept")
    assert [file.name for file in files] == sorted(f"{folder.name}.json" for folder in three_seeds)
    assert [(row.label, row.values, row.difference) for row in numbers([tmp_path / "kept"]).rows] == [
        (row.label, row.values, row.difference) for row in whole
    ]
    assert keep([tmp_path / "runs"], tmp_path / "kept") == files  # once more, over them
    again = keep([tmp_path / "kept"], tmp_path / "copied")
    assert [file.read_text() for file in again] == [file.read_text() for file in files]
    config["resolved"]["model"] |= {"weights": weights, "weights_sha256": "ab" * 32}
    config["resolved"] |= {"plugins": [plugin], "tuned": {"model.weights": weights}}
    config["asked"] = {"model.weights": [weights, ""]}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (file,) = keep([folder], tmp_path / "kept")
    early = json.loads(file.read_text())
    resolved = early["config"]["resolved"]
    assert (resolved["model"]["weights"], resolved["plugins"]) == ("net.safetensors", ["mine.py"])
    resolved["plugins"] = [plugin]  # of a version that kept the paths
    (tmp_path / "early.json").write_text(json.dumps(early))
    (copied,) = keep([tmp_path / "early.json"], tmp_path / "copied")
    assert not any(str(tmp_path) in one.read_text() for one in (*files, file, copied))


def test_what_would_be_lost_or_cannot_be_written_is_not_kept(
    three_seeds: list[Path], run: MakeRun, tmp_path: Path
) -> None:
    other = run("fedavg", name=three_seeds[0].name, under="other")
    with refused(ConfigError, other.name):
        keep([*three_seeds, other], tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    (tmp_path / "file").write_text("")
    with refused(ConfigError, "--keep", "file"):
        keep(three_seeds, tmp_path / "file")
