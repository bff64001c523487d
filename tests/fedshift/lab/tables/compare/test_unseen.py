"""``--unseen``: leave-one-out runs as one row, each domain scored by the run whose nodes did not hold it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.tables.compare import compare
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError

Keep = Callable[..., Path]
THREE = ("scan", "street", "texture")
#: Accuracies on the domain that was left out, which stand out among those of domains that were trained on: 99.
LEFT_OUT = {"scan": 30.0, "street": 40.0, "texture": 20.0}


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Return a function that writes a finished run of three domains as one file, which holds ``out`` out."""

    def kept(
        method: str, out: str, *, seed: int = 0, gain: float = 0.0, settings: str = "", counts: str = "",
        figures: bool = False, others: dict[str, dict[str, float | None]] | None = None, models: str = "global model",
        torch: str = "1",
    ) -> Path:  # fmt: skip
        counts = counts or "{" + ", ".join(f"{domain}: 2" for domain in THREE if domain not in out) + "}"
        given = (
            f"dataset.domains=[scan,street,texture] 'allocation.held_out={out}' 'allocation.counts={counts}' {settings}"
        )
        config = resolve({"experiment": "handwritten", "method": method, "seed": seed, "set": given})
        domains = {domain: LEFT_OUT[domain] + gain if domain in out else 99.0 for domain in THREE}
        of = {"n": 500, "accuracy": 1.0, "balanced_accuracy": 1.0, "macro_f1": 1.0, "auc": None, "ece": 1.0}
        summary: dict[str, Any] = {
            "method": method, "dataset": "handwritten", "seed": seed, "averaged_rounds": 5, "domains": domains,
            "evaluated": models, "final": {name: value + 1 for name, value in domains.items()},
            "best_test": {"round": 3, "domains": domains}, "others": others or {},
            "weights_sha256": f"{method}{given}{seed}{float(gain)}",
            "nodes": [{"domain": name, "class_counts": [1]} for name in THREE if name not in out for _ in range(2)],
            "config": {"resolved": config.model_dump(mode="json"), "engine": "inline", "versions": {"torch": torch}},
        }  # fmt: skip
        if figures:
            summary["figures"] = {"round": 3, "domains": dict.fromkeys(THREE, of)}
        file = tmp_path / f"{method}-{len(list(tmp_path.iterdir()))}.json"
        file.write_text(json.dumps(summary))
        return file

    return kept


def in_turn(keep: Keep, method: str, gains: dict[int, float], **more: Any) -> list[Path]:
    return [keep(method, f"[{out}]", seed=seed, gain=gain, **more) for seed, gain in gains.items() for out in THREE]


def test_each_domain_comes_from_the_run_whose_nodes_did_not_hold_it(keep: Keep) -> None:
    runs = in_turn(keep, "fedavg", {0: 0, 1: 2, 2: 4}) + in_turn(keep, "i2pfl", {0: 3, 1: 4, 2: 8})
    numbers = compare(runs, held_out=True).numbers
    assert numbers.columns == (*THREE, "AVG", "STD", "WORST")
    assert [(row.label, row.group, row.seeds) for row in numbers.rows] == [
        ("fedavg", "", (0, 1, 2)), ("i2pfl", "", (0, 1, 2))
    ]  # fmt: skip
    for row, gains in zip(numbers.rows, ([0, 2, 4], [3, 4, 8]), strict=True):
        for domain, accuracy in LEFT_OUT.items():
            assert [row.by_seed[seed][domain] for seed in range(3)] == [accuracy + gain for gain in gains]
        assert [row.by_seed[seed]["AVG"] for seed in range(3)] == pytest.approx([30 + gain for gain in gains])
        assert row.worst == "texture"
    difference = numbers.rows[1].difference
    assert difference is not None and difference.difference.mean == pytest.approx(3)
    assert "of domains that no node held" in numbers.title and not numbers.warnings
    assert numbers.notes[0].startswith("each domain as the run scored it in which no node held it")


def test_metrics_of_last_and_kept_rounds_make_no_row_together(keep: Keep) -> None:
    """A joined run would have a domain of either."""
    of = {"figures": True, "settings": "allocation.validation_fraction=0.2"}
    kept = {"figures": True, "settings": "allocation.validation_fraction=0.2 keep=best-validation"}
    runs = [keep("fedavg", f"[{out}]", **(kept if out == "scan" else of)) for out in THREE]
    with pytest.raises(ConfigError, match=r"round is best-validation .* and last"):
        compare(runs, score="auc", held_out=True)
    assert len(compare(runs, score="final", held_out=True).numbers.rows) == 1


def test_without_the_flag_they_are_groups_and_a_note_names_it(keep: Keep) -> None:
    runs = in_turn(keep, "fedavg", {0: 0})
    numbers = compare(runs, allow_different=True).numbers
    assert len({row.group for row in numbers.rows}) == 3
    assert any(note.endswith("; --unseen makes one row of them") for note in numbers.notes)
    other = keep("fedavg", "[scan]", settings="train.lr=0.5")
    numbers = compare([*runs, other], allow_different=True).numbers
    assert not any("--unseen" in note for note in numbers.notes)  # a learning rate is no domain


def test_columns_stand_in_the_order_of_the_data_set_whatever_was_run_first(keep: Keep) -> None:
    numbers = compare(in_turn(keep, "fedavg", {0: 0})[::-1], held_out=True).numbers
    assert numbers.columns[:3] == THREE
    assert numbers.rows[0].by_seed[0]["texture"] == LEFT_OUT["texture"]


def test_the_refusal_names_the_flag_too(keep: Keep) -> None:
    runs = in_turn(keep, "fedavg", {0: 0})
    with pytest.raises(ConfigError, match=r"makes rows of them, --unseen one of runs that leave out a domain each\): "):
        compare(runs)
    with pytest.raises(ConfigError, match=r"makes rows of them\): "):
        compare([*runs, keep("fedavg", "[scan]", settings="train.lr=0.5")])


def test_other_settings_stay_rows_and_groups_of_their_own(keep: Keep) -> None:
    runs = in_turn(keep, "fedavg", {0: 0}) + in_turn(keep, "fedprox", {0: 1}, settings="method.mu=0.5")
    runs += in_turn(keep, "fedprox", {0: 2}, settings="method.mu=0.7")
    assert [row.label for row in compare(runs, held_out=True).numbers.rows] == [
        "fedavg",
        "fedprox mu=0.5",
        "fedprox mu=0.7",
    ]
    runs += in_turn(keep, "fedavg", {0: 5}, settings="train.lr=0.5")
    with pytest.raises(ConfigError, match=r"these runs differ in more than method and seed .*train.lr"):
        compare(runs, held_out=True)
    groups = compare(runs, held_out=True, allow_different=True).numbers
    assert {row.group for row in groups.rows} == {"train.lr=0.01", "train.lr=0.5"}


def test_personal_models_are_reported_as_scored_where_nobody_trained(keep: Keep) -> None:
    runs = in_turn(keep, "fedavg", {0: 0}) + in_turn(keep, "fdse", {0: 1}, models="personal models")
    notes = compare(runs, held_out=True).numbers.notes
    assert "scored personal: each node's own model, on the domain that no node held; mean over the nodes" in notes
    assert not any("on its own domain" in note for note in notes)


def test_two_domains_left_out_at_once_are_two_columns_of_one_run(keep: Keep) -> None:
    numbers = compare([keep("fedavg", "[scan,texture]")], held_out=True).numbers
    assert numbers.columns[:2] == ("scan", "texture") and numbers.rows[0].by_seed[0]["AVG"] == 25


def test_a_domain_that_a_seed_lacks_is_missing_and_no_average_is_taken(keep: Keep) -> None:
    runs = [*in_turn(keep, "fedavg", {0: 0}), keep("fedavg", "[scan]", seed=1), keep("fedavg", "[street]", seed=1)]
    numbers = compare(runs, held_out=True).numbers
    assert [row.label for row in numbers.rows] == ["fedavg"]
    assert numbers.rows[0].by_seed[1]["texture"] is None and numbers.rows[0].by_seed[1]["AVG"] is None
    assert "fedavg, seed 1: no texture; no average over the rest is taken" in numbers.notes
    runs += [*in_turn(keep, "ga", {1: 1})]
    assert not compare(runs, held_out=True).numbers.warnings  # of other images: fedavg's seed 1 has fewer nodes


def test_other_scores_are_those_of_the_held_out_domain_too(keep: Keep) -> None:
    statistics = {"bn=retaken": {"scan": 71.0, "street": 72.0, "texture": 73.0}, "bn=own": dict.fromkeys(THREE)}
    runs = in_turn(keep, "fedavg", {0: 0}, settings="model.name=cnn_bn", others=statistics, figures=True)
    (row,) = compare(runs, held_out=True, score="bn=retaken").numbers.rows
    assert [row.by_seed[0][domain] for domain in THREE] == [71, 72, 73]
    with pytest.raises(ConfigError, match="was not scored so"):
        compare(runs, held_out=True, score="bn=own")
    (row,) = compare(runs, held_out=True, score="final").numbers.rows
    assert row.by_seed[0]["scan"] == 31
    numbers = compare(runs, held_out=True).numbers
    assert "test images: scan 500, street 500, texture 500" in numbers.notes
    with pytest.raises(ConfigError, match="--unseen: the measures of --score clients"):
        compare(runs, held_out=True, score="clients")


def test_a_repetition_counts_once_and_other_numbers_are_refused(keep: Keep) -> None:
    runs = [*in_turn(keep, "fedavg", {0: 0}), keep("fedavg", "[scan]")]
    numbers = compare(runs, held_out=True).numbers
    assert "fedavg-3 repeats fedavg-0 with the same numbers and counts once" in numbers.notes
    with pytest.raises(
        ConfigError, match="fedavg: seed 0 comes twice, without scan, with different numbers: fedavg-0 and"
    ):
        compare([*runs, keep("fedavg", "[scan]", gain=1)], held_out=True)
    with pytest.raises(ConfigError, match="without street, with other held-out domains: fedavg-1 and fedavg-5"):
        compare([*runs, keep("fedavg", "[street,texture]")], held_out=True)


def test_repetitions_of_all_runs_of_a_seed_show_that_another_version_changes_nothing(keep: Keep) -> None:
    runs = [*in_turn(keep, "fedavg", {0: 0}), *in_turn(keep, "ga", {0: 1}, torch="2")]
    (warning,) = compare(runs, held_out=True).numbers.warnings
    assert warning.startswith("not the same torch: torch is 1 ")
    again = in_turn(keep, "fedavg", {0: 0}, torch="2")
    assert not compare([*runs, again[0]], held_out=True).numbers.warnings  # as one seed is enough of other runs
    numbers = compare([*runs, *again], held_out=True).numbers
    assert not numbers.warnings
    note = "not the same torch, but fedavg seed 0 ran with each and ended with the same weights: torch is 1 "
    assert any(line.startswith(note) for line in numbers.notes)
    assert [row.by_seed[0]["scan"] for row in numbers.rows] == [30, 31]


def test_parts_of_other_versions_are_named(keep: Keep) -> None:
    """Only the second of three parts has another version."""
    parts = [keep(method, f"[{out}]", torch="2" if out == "street" else "1") for method in ("fedavg", "ga")
             for out in THREE]  # fmt: skip
    (warning,) = compare(parts, held_out=True).numbers.warnings
    assert warning == "not the same torch: torch is 1 (fedavg-0, fedavg-2 and 2 more) and 2 (fedavg-1, ga-4)"
    (harmful,) = compare([*parts, keep("fedavg", "[scan]", torch="3")], held_out=True).numbers.warnings
    assert "and 2 (fedavg-1, ga-4)" in harmful  # of which no repetition is a witness
    again = in_turn(keep, "fedavg", {0: 0}, torch="2")
    numbers = compare([*parts, *again], held_out=True).numbers
    note = "not the same torch, but fedavg seed 0 ran with each and ended with the same weights: torch is 1 (fedavg-0, "
    assert not numbers.warnings and any(line.startswith(note) for line in numbers.notes)


def test_what_any_part_says_is_said_of_the_joined_run(keep: Keep) -> None:
    """Nodes that had not trained, rounds of the mean, an early end and contradictions of the second and third part."""
    parts = in_turn(keep, "fedavg", {0: 0})
    stopped = {"after_round": 7, "of": 20, "best_round": 2, "patience": 5}
    more: list[dict[str, Any]] = [
        {"untrained": {"4": [1]}},
        {"untrained": {"4": [2], "5": [0]}, "stopped_early": stopped, "contradiction": "fedavg-1: another mean"},
        {"averaged_rounds": 3, "contradiction": "fedavg-2: another best round"},
    ]
    for part, said in zip(parts, more, strict=True):
        part.write_text(json.dumps(json.loads(part.read_text()) | said))
    table = compare(parts, held_out=True)
    assert "mean of the last 3 to 5 rounds" in table.numbers.title
    for note in (
        "fedavg, seed 0 without street: in 2 of 5 averaged rounds up to 1 node had not trained yet, not scored",
        "fedavg, seed 0 without street: stopped after round 7 of 20: no better validation since round 2 "
        "(evaluate.patience=5)",
        "runs with fewer scored rounds than five: 3 are averaged",
    ):
        assert note in table.numbers.notes
    assert "fedavg-1: another mean; fedavg-2: another best round" in table.csv()


def test_runs_that_do_not_belong_together_are_refused(keep: Keep) -> None:
    with pytest.raises(ConfigError, match=r"--unseen: fedavg-1 holds no domain out \(allocation.held_out=\[DOMAIN\]\)"):
        compare(
            [keep("fedavg", "[scan]"), keep("fedavg", "[]", counts="{scan: 2, street: 2, texture: 2}")], held_out=True
        )
    fewer = keep("fedavg", "[texture]", counts="{scan: 2, street: 1}")
    with pytest.raises(
        ConfigError, match=r"--unseen: allocation.counts.street is 2 in .* and 1 in .*; compare them apart"
    ):
        compare([*in_turn(keep, "fedavg", {0: 0}), fewer], held_out=True)


def test_a_zero_for_the_domain_that_is_held_out_is_no_other_number_of_nodes(keep: Keep) -> None:
    zero = keep("fedavg", "[scan]", counts="{scan: 0, street: 2, texture: 2}")
    (row,) = compare([zero, keep("fedavg", "[street]"), keep("fedavg", "[texture]")], held_out=True).numbers.rows
    assert row.by_seed[0]["AVG"] == pytest.approx(30)


def test_shares_by_domain_may_leave_out_the_domain_that_is_held_out(keep: Keep) -> None:
    shares = {"scan": 0.1, "street": 0.2, "texture": 0.3}
    runs = []
    for out in reversed(THREE):
        result = ", ".join(f"{domain}: {share}" for domain, share in shares.items() if domain != out)
        runs.append(keep("fedavg", f"[{out}]", settings=f"'allocation.share={{{result}}}'"))
    (row,) = compare(runs, held_out=True).numbers.rows
    assert row.by_seed[0]["AVG"] == pytest.approx(30)


def test_a_held_out_domain_that_a_paper_lacks_has_no_printed_row() -> None:
    runs = [ROOT / "docs" / "results" / "out-digits-cnn"]  # MNIST, USPS and MNIST-M; the table has SVHN and SYN
    numbers = compare(runs, paper="i2pfl.tableiiidigits", allow_different=True).numbers
    compared = {row.group: row.paper is not None for row in numbers.rows if row.method == "fedavg"}
    assert compared == {f"allocation.held_out=[{name}]": name != "mnistm" for name in ("mnist", "usps", "mnistm")}
    (row,) = [row for row in compare(runs, paper="i2pfl.tableiiidigits", held_out=True).numbers.rows
              if row.method == "i2pfl"]  # fmt: skip
    assert row.paper is not None and row.paper.values["mnistm"] is None
    assert row.paper.values["mnist"] is not None and row.paper.values["AVG"] is None  # a mean over other domains


@pytest.mark.usefixtures("undrawn_figures")
def test_the_command_and_its_page(keep: Keep, tmp_path: Path) -> None:
    in_turn(keep, "fedavg", {0: 0, 1: 1})
    in_turn(keep, "ga", {0: 2, 1: 5})
    page = tmp_path / "page.html"
    result = CliRunner().invoke(cli.app, ["compare", str(tmp_path), "--unseen", "--markdown", "--html", str(page)])
    assert result.exit_code == 0, result.output
    assert "| ga | global | 2 | **33.50 ± 2.12** |" in result.stdout and "+3.00 ± 1.41" in result.stdout
    assert all(name in page.read_text() for name in ("fedavg-0", "fedavg-1", "fedavg-2"))
