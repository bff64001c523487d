"""``fedshift claims`` on hand-made runs whose gains are worked out next to them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import refused
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.tables.compare.claim_rule import (
    NO_DIFFERENCE,
    NOT_COMPARABLE,
    NOT_TESTED,
    OPPOSITE,
    OTHER_SIZE,
    PRETRAINED_RULE,
    RULE,
    SIMILAR,
    Claim,
)
from fedshift.lab.tables.compare.claim_table import Claims
from fedshift.lab.tables.compare.claims import claims
from fedshift_core.errors import ConfigError

Make = Callable[..., Path]
PACS = ("photo", "art_painting", "cartoon", "sketch")
TABLE = "f2dc.table1b"
WEIGHTS = {"weights": "/weights.safetensors", "weights_sha256": "ab" * 32}  # section `model` of a run that started so


@pytest.fixture
def make(run: Callable[..., Path]) -> Make:
    """Return a function that writes a run of f2dc-pacs with the same accuracy in all domains but for ``more``."""

    def kept(
        method: str, seed: int, accuracy: float, given: str = "", *, folder: str = "pacs",
        more: Mapping[str, Any] = {}, model: Mapping[str, str] = {}, **results: Any,
    ) -> Path:  # fmt: skip
        domains = dict.fromkeys(PACS, accuracy) | dict(more)
        results = {"weights_sha256": f"{folder}{method}{given}{seed}"} | results
        made = run(method, seed, domains=domains, given=given, experiment="f2dc-pacs", under=folder, **results)
        if model:  # weights that are not here
            content = yaml.safe_load((made / "config.yaml").read_text())
            content["resolved"]["model"].update(model)
            (made / "config.yaml").write_text(yaml.safe_dump(content))
        return made.parent

    return kept


@pytest.fixture
def pair(make: Make) -> Make:
    """Return a function that writes three seeds of FedAvg and of F2DC, which gains 4, 4.1 and 4.2; or as many."""

    def kept(given: str = "", *, seeds: int = 3, **more: Any) -> Path:
        for seed in range(seeds):
            make("fedavg", seed, 50 + seed, given, **more)
            place = make("f2dc", seed, 54 + 1.1 * seed, given, **more)
        return place

    return kept


def one(found: Claims, row: str = "F2DC") -> Claim:
    (claim,) = of_table(found, row)
    return claim


def of_table(found: Claims, *rows: str) -> list[Claim]:
    return [claim for claim in found.claims if claim.table == TABLE and (not rows or claim.row in rows)]


def test_sign_size_and_p_decide(make: Make) -> None:
    """Printed gains: F2DC +10.08, FedProx +2.55, FPL +4.21, FedSA +4.31, FedRCL -0.42 and MOON -3.74."""
    for seed, base in enumerate((50, 52, 54)):
        make("fedavg", seed, base)
        make("f2dc", seed, base + (3.0, 3.5, 4.0)[seed])  # differences 3, 3.5, 4: mean 3.5, s 0.5, t = 12.1, p 0.007
        make("fedprox", seed, base - (3.0, 3.5, 4.0)[seed])  # printed above FedAvg
        make("fpl", seed, base + (3.0, -2.0, 4.0)[seed])  # mean 1.67, s 3.2: p 0.46
        make("fedsa", seed, base + 2.2, "method.share_weights=true")  # the same at each seed: no p, no doubt
        make("fedrcl", seed, base - (4.9, 5.3, 5.8)[seed])
        make("moon", seed, base - (1.8, 1.9, 2.0)[seed])
        make("feddyn", seed, base + 2)  # not in the table
    make("fedheal", 0, 60)
    checked = claims([make("fedheal", 1, 60)])
    f2dc = one(checked)
    assert f2dc.printed_gain == pytest.approx(10.08, abs=0.005) and f2dc.own and f2dc.all_domains
    assert f2dc.our_gain.difference.mean == pytest.approx(3.5) and f2dc.our_gain.p == pytest.approx(0.0067, abs=1e-4)
    assert {claim.row: claim.verdict for claim in of_table(checked)} == {
        "F2DC": OTHER_SIZE, "FedProx": OPPOSITE, "FPL": NO_DIFFERENCE, "FedSA": SIMILAR, "FedRCL": OTHER_SIZE,
        "MOON": SIMILAR, "FedHEAL": NOT_TESTED,
    }  # fmt: skip
    assert one(checked, "FPL").our_gain.p == pytest.approx(0.46, abs=0.01)
    assert one(checked, "FedSA").our_gain.p is None and not one(checked, "FedProx").own
    # p is corrected for all rows that were tested, however many are shown.
    p = [claim.our_gain.p for claim in checked.claims if claim.our_gain.p_holm is not None]
    assert len(p) == sum(c.verdict != NOT_COMPARABLE and c.our_gain.p is not None for c in checked.claims)
    assert min(c.our_gain.p_holm or 1 for c in checked.claims) == pytest.approx(len(p) * min(p))
    own = replace(checked, own=True)
    assert one(own).our_gain.p_holm == f2dc.our_gain.p_holm and f", of which {len(own.shown)} are shown" in own.text()
    (record,) = [row for row in json.loads(checked.json())["claims"] if (row["table"], row["row"]) == (TABLE, "F2DC")]
    assert (record["p"], record["p (Holm)"]) == (f2dc.our_gain.p, f2dc.our_gain.p_holm)
    assert f"| {f2dc.our_gain.p:.3f} | {f2dc.our_gain.p_holm:.3f} | {f2dc.verdict} |" in checked.markdown()


def test_runs_of_equal_settings_are_paired_by_seed_wherever_they_lie(make: Make, tmp_path: Path) -> None:
    """FedAvg's seed 0 lies in two folders with the same numbers, its others in one, and F2DC's in the other."""
    for seed in range(3):
        make("fedavg", seed, 50 + seed, folder="first", weights_sha256=f"w{seed}")
        make("f2dc", seed, 55 + 1.1 * seed, folder="second")
        make("fedavg", seed, 70 + seed, "train.lr=0.3", folder="third")  # another setting
    make("fedavg", 0, 50, folder="second", weights_sha256="w0")
    make("fpl", 0, 51, folder="first")
    make("fpl", 1, 54, folder="second")
    checked = claims([tmp_path])
    f2dc, fpl = one(checked), one(checked, "FPL")
    assert f2dc.our_gain.seeds == (0, 1, 2) and f2dc.our_gain.difference.mean == pytest.approx(5.1)
    assert fpl.our_gain.seeds == (0, 1) and f2dc.runs == "second + first: f2dc"
    results = next((tmp_path / "second").glob("fedavg*/results.json"))
    results.write_text(results.read_text().replace("50", "49"))  # other numbers: now the folders stand apart
    assert one(claims([tmp_path])).our_gain.seeds == (0,)


def test_rows_of_other_rounds_than_the_last_five_are_marked_and_named(pair: Make, make: Make, tmp_path: Path) -> None:
    """A whole folder of the last round, a row of it in another, and one of rounds that are far apart."""
    far = {"averaged_over": [60, 70, 80, 90, 100]}
    for folder, rounds in (("five", {}), ("once", {"averaged_rounds": 1}), ("far", far)):
        pair(folder=folder, **rounds)
    for seed in range(3):
        make("fpl", seed, 55 + seed, folder="five", averaged_rounds=3)
    found = claims([tmp_path])
    assert {claim.runs: claim.rounds for claim in of_table(found)} == {
        "five: f2dc": "", "once: f2dc": "last round", "five: fpl": "last 3 to 5 rounds",
        "far: f2dc": "last five scored rounds (60 to 100)",
    }  # fmt: skip
    lines = [line for line in found.markdown().splitlines() if line.startswith(f"| {TABLE} ")]
    assert ["five: f2dc" in line for line in lines] == [not line.endswith(") |") for line in lines]


def test_the_command_in_three_forms_counts_all_rows_and_shows_fewer(pair: Make, make: Make) -> None:
    place = pair()
    for seed in range(3):
        make("fedprox", seed, 51 + seed * (seed - 1))
    make("fedmlp", 0, 40)  # an approximation: does not compare

    def shown(flags: str = "") -> str:
        return CliRunner().invoke(cli.app, ["claims", str(place), *flags.split()]).stdout

    def rows(flags: str) -> set[str]:
        return {row["row"] for row in json.loads(shown(flags))["claims"] if row["table"] == TABLE}

    assert f" {OTHER_SIZE}" in shown()
    page = shown("--markdown --score final")
    assert "| f2dc.table1b | **F2DC** |" in page and "last round" in page
    output = json.loads(shown("--json"))
    assert (output["rule"], output["pretrained_rule"]) == ([*RULE], [*PRETRAINED_RULE])
    assert rows("--json") == rows("--json --comparable") == {"F2DC", "FedProx"}
    assert rows("--json --own") == rows("--json --own --comparable") == {"F2DC"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("nowhere", "nowhere"), (".", "no config.yaml"), ("costs.json", "costs.json"),
        (". --score auc", "--score auc"), (". --score best", "--score best"),
        (". --score what", "--score is 'what'"), (". --json --markdown", "not both"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(
    arguments: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "costs.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with refused(ConfigError, named):
        CliRunner().invoke(cli.app, ["claims", *arguments.split()], catch_exceptions=False)


def test_folders_that_were_not_scored_so_and_files_that_are_cut_off_are_named(
    pair: Make, make: Make, tmp_path: Path
) -> None:
    pair(others={"bn=retaken": dict.fromkeys(PACS, 50.0)})
    make("fedprox", 0, 50, "model.bn=local")  # one run of a folder
    other = make("fedavg", 0, 52, folder="other")
    assert claims([tmp_path], score="bn=retaken").lacking == ("other", "pacs")
    with refused(ConfigError, "was not scored so"):
        claims([other], score="bn=retaken")
    (cut,) = other.glob("*/results.json")
    cut.write_text(cut.read_text()[:100])
    (tmp_path / "stray.json").write_text('{"method":')
    (tmp_path / "pacs" / "lost.json").write_text("")
    checked = claims([tmp_path])
    assert one(checked).verdict == OTHER_SIZE
    assert all(line.startswith("left out, cannot be read: ") for line in checked.unreadable)
    done = CliRunner().invoke(cli.app, ["claims", str(tmp_path)])
    assert done.exit_code == 1 and "were left out: 3" in done.output
    with refused(ConfigError, "cannot be read as JSON"):
        claims([other])


def test_pretrained_runs_have_a_verdict_of_their_own_and_change_no_other(
    pair: Make, make: Make, tmp_path: Path
) -> None:
    alone = claims([pair(folder="scratch")])
    for seed in range(3):
        for method, accuracy in (("fedavg", 80 + seed), ("f2dc", 77 + 1.1 * seed), ("fpl", 81 + (0, 3, 0)[seed])):
            make(method, seed, accuracy, folder="three", model=WEIGHTS)
    for method, accuracy in (("fedavg", 80), ("f2dc", 95), ("moon", 79)):  # one seed, elsewhere
        make(method, 0, accuracy, folder="one", model=WEIGHTS)
    checked = claims([tmp_path])
    from_scratch = [claim for claim in checked.claims if not claim.pretrained]
    assert [(c.verdict, c.our_gain.p) for c in from_scratch] == [(c.verdict, c.our_gain.p) for c in alone.claims]
    on_pretrained = {claim.row: claim for claim in of_table(checked) if claim.pretrained}
    assert {row: claim.verdict_line for row, claim in on_pretrained.items()} == {
        "F2DC": OPPOSITE, "FPL": NO_DIFFERENCE, "MOON": NOT_TESTED,
    }  # fmt: skip
    f2dc = on_pretrained["F2DC"]
    assert f2dc.runs == "three: f2dc" and f2dc.our_gain.difference.mean == pytest.approx(-2.9)  # not the larger gain
    assert f2dc.unlike == ("pretrained (paper from scratch)",)
    assert PRETRAINED_RULE[0][:50] in checked.markdown() and PRETRAINED_RULE[0] not in alone.markdown()
