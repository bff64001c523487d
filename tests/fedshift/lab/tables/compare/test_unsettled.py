"""Values that a paper leaves open, or prints otherwise than our experiments have them, are shown apart from its own."""

import csv
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedshift.lab.tables.compare import Comparison, compare
from fedshift.lab.tables.compare.claims import claims
from fedshift.lab.tables.compare.notes import OPEN
from fedshift.lab.tables.papers import open_values, printed
from fedshift.lab.tables.papers.printed import Table
from fedshift.lab.tables.results.settings import paper_settings
from fedshift_app.config.files import CONF, names
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError
from fedshift_core.yaml_files import read_yaml

Keep = Callable[..., Path]
TABLES = printed.all_tables()


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Return a function that writes a finished run of an experiment as one file."""

    def kept(experiment: str, method: str, settings: str = "", *, seed: int = 0, accuracy: float = 50.0) -> Path:
        config = resolve({"experiment": experiment, "method": method, "seed": seed, "set": settings})
        domains = dict.fromkeys(config.dataset.domains, accuracy)
        number = config.allocation.num_nodes()
        summary = {
            "method": method, "dataset": config.dataset.name, "seed": seed, "evaluated": "global model",
            "averaged_rounds": 5, "domains": domains, "final": domains, "best_test": {"round": 3, "domains": domains},
            "weights_sha256": f"{method}{settings}{seed}",
            "nodes": [{"domain": config.dataset.domains[0], "class_counts": [1]}] * (number or 1),
            "config": {"resolved": config.model_dump(mode="json"), "engine": "inline", "versions": {"torch": "1"}},
        }  # fmt: skip
        place = tmp_path / "runs"
        place.mkdir(exist_ok=True)
        file = place / f"{method}-{len(list(place.iterdir()))}.json"
        file.write_text(json.dumps(summary))
        return file

    return kept


AVERAGED = "method.local_modules=aggregate method.eval_modules=aggregated"
EATA = "adapt.margin=2.7631021115928547 adapt.redundancy=0.05 adapt.fisher_alpha=2000"  # as its paper has them
CLASSES = "proto_reduction=sample_mean (paper class_mean)"


@pytest.mark.parametrize(
    ("experiment", "method", "settings", "table", "altered", "left_open"),
    [
        # F2DC, section 4.3: "each client decoupler, corrector, and m are kept locally"; nothing on how it then scores.
        ("f2dc-pacs", "f2dc", "", "f2dc.table1b", [], []),
        ("f2dc-pacs", "f2dc", AVERAGED, "f2dc.table1b", ["local_modules=aggregate (paper local)"],
         ["eval_modules=aggregated (client_mean)"]),
        ("f2dc-pacs", "f2dc", "method.sigma=5 method.eval_noise=true", "f2dc.table1b", ["sigma=5.0 (paper 0.1)"],
         ["eval_noise=true (false)"]),
        ("f2dc-pacs", "fedavg", "modules=[f2dc] modules.f2dc.hidden=32", "f2dc.table3",
         ["modules.f2dc.local_modules=aggregate (paper local)"], ["modules.f2dc.hidden=32 (64)"]),
        # I2PFL: Eqs 5, 8 and 9 are lost in the text at hand.
        ("i2pfl-digits", "i2pfl", "method.augproto_scope=class_set", "i2pfl.tableiidigits", [],
         ["augproto_scope=class_set (batch)"]),
        ("i2pfl-digits", "i2pfl", "method.ema_weight_on=current", "i2pfl.tableiidigits", [],
         ["ema_weight_on=current (past)"]),
        ("i2pfl-digits", "i2pfl", "method.ema=0.5", "i2pfl.tableiidigits", ["ema=0.5 (paper 0.99)"], []),
        # FedSeProto: Eqs 10 and 13 print sums, and Eq. 13 a mean within each class.
        ("fedseproto-pacs", "fedseproto", "", "fedseproto.table2pacs", ["reduction=mean (paper sum)", CLASSES], []),
        ("fedseproto-pacs", "fedseproto", "method.reduction=sum", "fedseproto.table2pacs", [CLASSES], []),
        ("fedseproto-pacs", "fedseproto", "method.reduction=sum method.proto_reduction=class_mean rounds=20",
         "fedseproto.table2pacs", [], ["rounds=20 (100)"]),
        # Of one table alone: the nodes of PACS are printed, those of digits are not; the map of PACS has 16 x 16 units.
        ("fedseproto-pacs", "fedavg", "allocation.counts.photo=1", "fedseproto.table2pacs",
         ["nodes=9 (paper 10)", "allocation.counts={art_painting:3,cartoon:4,photo:1,sketch:1} (paper "
          "{art_painting:3,cartoon:4,photo:2,sketch:1})"], []),
        ("fedseproto-digits", "fedavg", "allocation.counts.mnist=2 allocation.counts.svhn=2",
         "fedseproto.table1digits", [],
         ["allocation.counts={mnist:2,svhn:2,syn:4,usps:2} ({mnist:3,svhn:1,syn:4,usps:2})"]),
        ("f2dc-office", "fedavg", "dataset.size=64", "f2dc.table1a", [], ["dataset.size=64 (32)"]),
        ("f2dc-pacs", "fedavg", "dataset.size=64", "f2dc.table1b", ["dataset.size=64 (paper 128)"], []),
        # Of a method that is compared with: all its own, and what it asks for; not the same key in another row.
        ("f2dc-office", "fedprox", "method.mu=0.01", "f2dc.table1a", [], ["mu=0.01 (0.0001)"]),
        ("f2dc-office", "fedrcl", "train.clip=5", "f2dc.table1a", [], ["train.clip=5.0 (10.0)"]),
        ("f2dc-office", "fedavg", "train.clip=5", "f2dc.table1a", ["train.clip=5.0 (paper null)"], []),
        ("fedicon-digit5-covariate", "fedprox", "method.mu=0.1", "fedicon.table1", ["mu=0.1 (paper 0.01)"], []),
        ("fedicon-digit5-covariate", "fedicon", "method.tta_lr=0.01", "fedicon.table1", [], ["tta_lr=0.01 (0.001)"]),
        # Of what adapts at test time over FedAvg, as of the methods of these names.
        ("fedicon-digit5-covariate", "fedavg", "adapt.name=tent adapt.lr=0.01 adapt.steps=3 model.name=cnn_bn",
         "fedicon.table1", ["adapt.steps=3 (paper 1)"], ["adapt.lr=0.01 (0.001)"]),
        ("fedicon-domainnet-covariate", "fedavg", f"adapt.name=eata {EATA} adapt.lr=0.00025", "fedicon.table6",
         ["model.name=resnet18 (paper torchvision:resnet18)", "model.download=false (paper true)"],
         ["adapt.lr=0.00025 (0.005)"]),
        # DomainNet starts from pretrained weights there.
        ("fedicon-domainnet-covariate", "fedavg", "", "fedicon.table6",
         ["model.name=resnet18 (paper torchvision:resnet18)", "model.download=false (paper true)"], []),
    ],
)  # fmt: skip
def test_what_a_paper_leaves_open_is_not_called_its_own(
    keep: Keep, experiment: str, method: str, settings: str, table: str, altered: list[str], left_open: list[str]
) -> None:
    result = compare([keep(experiment, method, settings)], paper=table)
    (row,) = result.numbers.rows
    assert row.paper is not None
    assert sorted(one.text for one in row.paper.altered) == sorted(altered)
    assert [one.text for one in row.paper.readings] == left_open
    assert all(one.why for one in row.paper.readings) and not any(one.why for one in row.paper.altered)
    notes = [note for note in result.numbers.notes if note.startswith(OPEN)]
    assert notes == ([f"{OPEN}, {row.label} with {row.paper.label}: {', '.join(left_open)}"] if left_open else [])


@pytest.mark.usefixtures("undrawn_figures")
def test_they_stand_in_every_format_and_are_not_counted(keep: Keep) -> None:
    outcome = compare([keep("f2dc-pacs", "f2dc", "method.eval_modules=none method.sigma=5")], paper="f2dc.table1b")
    result = f"{OPEN}, f2dc with F2DC: eval_modules=none (client_mean)"
    assert f"- {result}" in outcome.text().replace("\n  ", " ")
    assert f"- {result}".replace("_", r"\_") in outcome.markdown()
    assert f"<li>{result}</li>" in outcome.html()
    for text in (outcome.text(), outcome.markdown(), outcome.html()):
        assert "  ours - paper (1 setting differs)" in text
    (line,) = csv.DictReader(io.StringIO(outcome.csv()))
    assert line["not the paper's"] == "sigma=5.0 (paper 0.1)"
    assert line["where the paper is silent"] == "eval_modules=none (client_mean)"
    (row,) = json.loads(outcome.json())["rows"]
    assert row["altered"].keys() == {"method.sigma"}
    why = "The paper keeps the modules on the nodes and does not say how the global model is then scored."
    assert row["readings"] == {
        "method.eval_modules": {"ours": ["none"], "reading": "client_mean", "why": why}
    }  # fmt: skip


def test_a_note_says_what_the_paper_prints_otherwise_than_the_experiment(keep: Keep) -> None:
    def message_of(found: Comparison) -> str:
        (note,) = [note for note in found.numbers.notes if note.startswith("the paper's values are those of")]
        return note.removeprefix("the paper's values are those of conf/experiments/")

    both = [keep("f2dc-pacs", "fedprox"), keep("f2dc-pacs", "f2dc")]
    assert message_of(compare(both, paper="f2dc.table1b")) == "f2dc-pacs"
    both.append(keep("f2dc-pacs", "fedavg", "modules=[f2dc]"))
    assert message_of(compare(both, paper="f2dc.table3")) == (
        "f2dc-pacs, but for modules.f2dc.local_modules=local, which it prints"
    )


@pytest.mark.parametrize(
    ("method", "settings", "label", "altered"),
    [
        ("tent", "", "Tent", []),
        ("fedavg", "adapt.name=tent", "Tent", ["model.name=cnn (paper cnn_bn)"]),
        ("fedavg", "adapt.name=tent model.name=cnn_bn", "Tent", []),
        ("fedavg", "adapt.name=tent adapt.steps=3 model.name=cnn_bn", "Tent", ["adapt.steps=3 (paper 1)"]),
        ("fedavg", f"adapt.name=eata {EATA} model.name=cnn_bn", "EATA", []),
        ("fedavg", "adapt.name=t3a", "T3A", []),
        ("fedavg", "", "FedAvg", []),
    ],
)
def test_a_model_adapted_when_it_is_scored_again_stands_next_to_the_papers_row(
    method: str, settings: str, label: str, altered: list[str], keep: Keep
) -> None:
    (row,) = compare([keep("fedicon-digit5-covariate", method, settings)], paper="fedicon.table1").numbers.rows
    assert row.paper is not None and row.paper.label == label
    assert [deviation.text for deviation in row.paper.altered] == altered


def test_what_all_rows_have_otherwise_is_reported_once(keep: Keep) -> None:
    runs = [keep("f2dc-office", method, "images.flip=false") for method in ("fedavg", "moon")]
    notes = [note for note in compare(runs, paper="f2dc.table1a").numbers.notes if note.startswith(OPEN)]
    assert notes == [f"{OPEN}, every row with a printed one: images.flip=false (true)"]


def test_claims_do_not_count_them_but_take_the_row_that_has_fewer(keep: Keep) -> None:
    for seed in range(3):
        keep("f2dc-pacs", "fedavg", seed=seed, accuracy=50 + seed)
        keep("f2dc-pacs", "f2dc", "method.eval_noise=true", seed=seed, accuracy=40 + seed)
        file = keep("f2dc-pacs", "f2dc", seed=seed, accuracy=55 + seed)
    (claim,) = [one for one in claims([file.parent]).claims if (one.table, one.row) == ("f2dc.table1b", "F2DC")]
    assert (claim.differ, claim.left_open, claim.our_gain.difference.mean) == (0, 0, 5)


def test_another_task_is_one_where_the_paper_is_silent_too(keep: Keep) -> None:
    for seed in range(3):
        for method in ("fedavg", "fedprox"):
            file = keep("fedicon-digit5-covariate", method, "shift.corruption=fog", seed=seed)
    (claim,) = [one for one in claims([file.parent]).claims if (one.table, one.row) == ("fedicon.table1", "FedProx")]
    assert (claim.differ, claim.why) == (0, "shift.corruption=fog (random)")


def _has_rows_of(table: Table, key: str) -> list[dict[str, Any]]:
    """Return the settings of those printed rows of a table that a declared key is of."""
    collected = []
    for column_map in table.printed.column_maps:
        for row in table.printed.rows:
            for ours in table.readings(row):
                requested = {
                    name: value for name, value in (dict(column_map.when) | ours).items() if name != "experiment"
                }
                given = shlex.join(f"{name}={json.dumps(value)}" for name, value in requested.items())
                settings = dict(paper_settings(str(ours.get("experiment") or table.experiment(column_map)), given))
                method = settings["method.name"]
                own = {f"{method}.{name.removeprefix('method.')}": name for name in settings if "method." in name}
                if (
                    key == f"{method}.*"
                    or own.get(key, key) in settings
                    or any(n.startswith(f"{key}.") for n in settings)
                    or key.replace(f"adapt.{settings.get('adapt.name')}.", "adapt.") in settings
                ):
                    collected.append(settings | {key: settings.get(own.get(key, key))})
    return collected


DECLARED = [
    (name, id_, section, key)
    for name in names("papers")
    for file in [read_yaml(CONF / "papers" / f"{name}.yaml")]
    for id_, part in [("", file), *((table["id"], table) for table in file["tables"])]
    for section in ("readings", "prints")
    for key in part.get(section, {})
]


def test_what_is_declared_is_of_a_printed_row_and_says_why_in_one_sentence() -> None:
    for paper, id_, section, key in DECLARED:
        where = f"{paper} {id_} {section} {key}"
        tables = [table for table in TABLES if table.paper.key == paper and id_ in ("", table.printed.id)]
        part = tables[0].printed if id_ else tables[0].paper
        rows = [row for table in tables for row in _has_rows_of(table, key)]
        assert rows, f"{where}: no printed row has this setting"
        if section == "prints":
            assert any(row[key] != part.prints[key].value for row in rows), f"{where}: our experiments have it so"
        why = part.readings[key] if section == "readings" else part.prints[key].why
        assert why.endswith(".") and not re.search(r"[.!?] [A-Z]", why), where


def test_all_papers_declare_readings() -> None:
    assert {paper for paper, _, section, _ in DECLARED if section == "readings"} == {*names("papers")}
    assert {(paper, key) for paper, _, section, key in DECLARED if section == "prints"} == {
        ("f2dc", "modules.f2dc.local_modules"), ("fedseproto", "fedseproto.reduction"),
        ("fedseproto", "fedseproto.proto_reduction"), ("fedicon", "model.name"), ("fedicon", "model.download"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("images.flp", "did you mean images.flip"), ("f2dc.eval_module", "did you mean f2dc.eval_modules"),
        ("modules.f2dc.hiden", "did you mean modules.f2dc.hidden"), ("adapt.tent.lrr", "did you mean adapt.tent.lr"),
        ("adapt.lr", "allowed are dotted keys"), ("fedporx.*", "allowed are dotted keys"),
        ("method.mu", "allowed are dotted keys"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_refused_in_one_line(
    key: str, known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = yaml.safe_load((CONF / "papers" / "f2dc.yaml").read_text())
    (tmp_path / "papers").mkdir()
    monkeypatch.setattr(printed, "CONF", tmp_path)
    for part, place in ((content, "f2dc.yaml: readings"), (content["tables"][1], "f2dc.yaml: Table 1b: readings")):
        part["readings"] = {key: "The paper does not say."}
        (tmp_path / "papers" / "f2dc.yaml").write_text(yaml.safe_dump(content))
        with pytest.raises(ConfigError, match=f"{place}: unknown key {key!r}; .*{known}") as error:
            printed._read.__wrapped__("f2dc")
        assert "\n" not in str(error.value)
        part["readings"] = {}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"readings": {"images.flip": ""}}, "readings.images.flip: String should have at least"),
        ({"prints": {"images.flip": {"value": True}}}, "prints.images.flip.why: Field required"),
        ({"readings": {"rounds": "It does not say."}, "prints": {"rounds": {"value": 9, "why": "Section 5 says 9."}}},
         "rounds is under readings and under prints"),
    ],
)  # fmt: skip
def test_a_value_without_a_reason_or_with_two_is_refused(
    part: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = yaml.safe_load((CONF / "papers" / "fedcode.yaml").read_text())
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "fedcode.yaml").write_text(yaml.safe_dump(content | part))
    monkeypatch.setattr(printed, "CONF", tmp_path)
    with pytest.raises(ConfigError, match=words):
        printed._read.__wrapped__("fedcode")


def test_the_more_exact_key_comes_first() -> None:
    said = {"moon.*": "Nothing is said of it.", "moon.mu": "Only mu is lost.", "train.lr": "The rate is lost."}
    assert open_values.why_open(said, "method.mu", "moon", (), "none") == "Only mu is lost."
    assert open_values.why_open(said, "method.tau", "moon", (), "none") == "Nothing is said of it."
    assert open_values.why_open(said, "method.mu", "fedprox", (), "none") == ""
    assert open_values.why_open(said, "method.name", "moon", (), "none") == ""
    assert open_values.why_open(said, "train.lr", "fedprox", (), "none") == "The rate is lost."
    assert open_values.why_open(said, "train.clip", "moon", (), "none") == ""
    assert open_values.why_open(said, "train.clip", "moon", {"train.clip"}, "none") == "Nothing is said of it."


def test_a_key_of_an_adaptation_is_that_of_rows_with_it() -> None:
    said = {"adapt.tent.lr": "Of Tent nothing is said.", "tent.tta_lr": "Of the method nothing is said."}
    assert open_values.why_open(said, "adapt.lr", "fedavg", (), "tent") == "Of Tent nothing is said."
    assert open_values.why_open(said, "adapt.lr", "fedavg", (), "eata") == ""
    assert open_values.why_open(said, "adapt.steps", "fedavg", (), "tent") == ""
    assert open_values.why_open(said, "method.tta_lr", "tent", (), "tent") == "Of the method nothing is said."
