"""The papers' printed tables: the same digits as in the papers, and rows and columns of ours that exist."""

import csv
import io
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import refused
from support import ROOT

from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.notes import OPEN
from fedshift.lab.tables.papers import printed as printed_module
from fedshift.lab.tables.papers.deviations import altered
from fedshift.lab.tables.papers.printed import ColumnMap, Table
from fedshift.lab.tables.results.differences import shown
from fedshift.lab.tables.results.settings import NODES, ROW_SECTIONS
from fedshift_app.config import dotted_keys, registry
from fedshift_app.config.files import CONF, names
from fedshift_app.config.keys import as_requested, flat
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog

TABLES = printed_module.all_tables()
#: What the project adds to the printed facts.
ADDED = ("methods", "also", "readings", "prints", "column_maps", "costs", "costs_notes", "budget")
#: What our columns may be besides domains.
MEASURES = re.compile(r"AVG|STD|LTA|GASA|GATA|CPRR|(ATA|all on) \w+|all on AVG")


def resolved(experiment: str, settings: dict[str, Any], more: str = "") -> dict[str, Any]:
    """Return all settings of a run by dotted key, and its number of nodes."""
    given = shlex.join(f"{key}={json.dumps(value)}" for key, value in settings.items())
    config = resolve({"experiment": experiment, "set": f"{given} {more}"})
    return as_requested(flat(config.model_dump(mode="json"))) | {NODES: config.allocation.num_nodes()}


@pytest.mark.parametrize("name", names("papers"))
def test_every_digit_is_that_of_the_shared_tables(name: str) -> None:
    shared = ROOT.parent / "shared" / "tables" / f"{name}.yaml"
    if not shared.is_file():
        pytest.skip("the tables that were copied are not next to this checkout")
    ours = yaml.load((CONF / "papers" / f"{name}.yaml").read_text(), Loader=yaml.CBaseLoader)  # digits as text
    theirs = yaml.load(shared.read_text(), Loader=yaml.CBaseLoader)
    for section in (ours, *ours["tables"]):
        for key in ADDED:
            section.pop(key, None)
    assert ours == theirs


def test_ids_differ_and_are_found_whatever_their_case_and_spaces() -> None:
    ids = [table.id for table in TABLES]
    assert len(set(ids)) == len(ids) == len(printed_module.lines()) == 43
    for requested in ("f2dc.table1b", "F2DC.Table 1b", " f2dc . TABLE1B "):
        assert printed_module.get(requested).printed.dataset == "PACS"
    with refused(ConfigError, "'f2dc.1'", "f2dc.table1a"):
        printed_module.get("f2dc.1")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.id)
def test_what_a_table_stands_for_exists(table: Table) -> None:
    labels = {row.method for row in table.printed.rows}
    assert table.printed.methods.keys() <= labels
    for row in table.printed.rows:
        assert set(row.values) == set(table.printed.columns)
        for ours in table.readings(row):
            settings = resolved("handwritten", ours | {"rounds": 30})
            makes_it = {key: value for key, value in ours.items() if key.startswith(ROW_SECTIONS)}
            assert {key: settings[key] for key in makes_it} == makes_it
    for column_map in table.printed.column_maps:
        domains = {domain for name in column_map.dataset for domain in catalog.get(name).domains}
        assert column_map.columns.keys() <= set(table.printed.columns)
        for column in column_map.columns.values():
            assert column in domains or MEASURES.fullmatch(column), column


#: By table and experiment: the method and settings that a run has, and the label or AVG of the printed row, if any.
ROWS = [
    ("f2dc.table5", "f2dc-pacs", "f2dc", "method.sigma=0.3", "75.34"),
    ("f2dc.table5", "f2dc-pacs", "f2dc", "method.sigma=0.2", None),
    ("f2dc.table1b", "f2dc-pacs", "fedavg", "modules=[f2dc]", None),  # FedAvg with modules is not FedAvg
    ("f2dc.table3", "f2dc-pacs", "fedavg", "modules=[f2dc]", "FedAvg+DFD+DFC"),
    ("fedicon.table1", "fedicon-digit5-covariate", "fedicon", "", "FedICON"),
    ("fedicon.table1", "fedicon-digit5-covariate", "fedicon", "method.tta=false", None),
    # FedProto shares weights where the paper has one global model.
    ("i2pfl.tableiidigits", "i2pfl-digits", "fedproto", "method.share_weights=false", None),
    ("i2pfl.tableiidigits", "i2pfl-digits", "fedproto", "method.share_weights=true", "FedProto"),
    ("f2dc.table6top", "f2dc-pacs", "f2dc", "", "DFD+DFC+DaA (F2DC)"),
    ("f2dc.table6top", "f2dc-pacs", "f2dc", "method.use_dfd_loss=false method.aggregation=fedavg", None),
    *[("fedicon.table8", experiment, "fedicon", "method.lie=false method.gis=false method.tta=false", label)
      for experiment, label in (("fedicon-table8-without-lie", "none (Local)"), ("fedicon-table8", None))],
    # Noise on prototypes.
    *[("i2pfl.tablevidigits", "i2pfl-digits", "i2pfl", f"method.dp={noise}", average)
      for noise, average in (("add", "87.15"), ("shrink_add", "87.15"), ("off", "87.33"))],
    *[(f"i2pfl.tableiv{part}", "i2pfl-digits", "i2pfl", settings, label)
      for part in ("digits", "office10", "pacs")
      for settings, label in (("method.use_apa=false", "w/o APA"), ("method.use_gpcl=false", "w/o GPCL"),
                              ("", "I2PFL"))],
]  # fmt: skip


@pytest.mark.parametrize(("table", "experiment", "method", "settings", "expected"), ROWS)
def test_a_row_is_chosen_by_its_settings(
    table: str, experiment: str, method: str, settings: str, expected: str | None
) -> None:
    standing = printed_module.get(table).standing(resolved(experiment, {"method.name": method}, settings))
    row = standing and standing.row
    assert expected in ((row.method, *(str(row.number(name).mean) for name in ("AVG", "Avg"))) if row else (None,))


COLUMN_MAPS = [(table, column_map) for table in TABLES for column_map in table.printed.column_maps]


@pytest.mark.parametrize(("table", "column_map"), COLUMN_MAPS, ids=[f"{t.id}-{c.dataset[0]}" for t, c in COLUMN_MAPS])
def test_what_a_row_stands_for_in_the_papers_own_experiment_differs_in_what_is_printed_otherwise_alone(
    table: Table, column_map: ColumnMap
) -> None:
    experiment = table.experiment(column_map)
    for row in table.printed.rows:
        for ours in table.readings(row):
            settings = {key: value for key, value in ours.items() if key != "experiment"}
            config = resolved(ours.get("experiment", experiment), column_map.when | settings)
            standing = table.standing(config)
            assert table.column_map(config) == column_map
            assert (standing.row.method, standing.settings) == (row.method, ours)
            printed = table.prints_of(config["method.name"])
            differing = altered([config], table, column_map, standing)
            assert {one.key for one in differing} == printed.keys() & config.keys()
            assert all((one.paper, one.why) == (shown(printed[one.key]), "") for one in differing)


def test_readings_and_prints_are_of_keys_that_exist() -> None:
    """METHOD.KEY, METHOD.* (what the method sets), adapt.NAME.KEY, or a dotted key of a configuration."""
    for table in TABLES:
        for part in (table.paper, table.printed):
            assert not part.readings.keys() & part.prints.keys()
            for key in (*part.readings, *part.prints):
                first, _, rest = key.partition(".")
                if first in registry.METHODS:
                    assert rest in (printed_module.ALL, *registry.get(first).known_keys()), key
                elif key not in dotted_keys.known():
                    section, name, own = key.split(".")
                    params = registry.adapt_params({"name": name}) if section == "adapt" else None
                    assert own in (params or registry.modules_params(name, {})).model_dump(), key


def test_no_row_that_names_a_method_of_ours_stands_for_nothing() -> None:
    lacking = [
        (table.id, row.method)
        for table in TABLES for row in table.printed.rows
        if set(registry.METHODS) & set(re.split(r"[^\w-]+", row.method.casefold())) and not table.readings(row)
    ]  # fmt: skip
    assert lacking == []


def test_print_errors_belong_to_their_table() -> None:
    assert printed_module.get("f2dc.table1b").checks() == [
        "Table 1b F2DC (PACS): sample STD of domains = 5.93 (population 5.14), printed STD = 5.83"
    ]


# --- printed rows next to ours ------------------------------------------------------------------------------


MakeRun = Callable[..., Path]
DIGITS = {"mnist": 96.04, "usps": 90.0, "svhn": 88.0, "syn": 52.0}
FIVE = DIGITS | {"mnistm": 50.0}
CLIENTS = {"lta": 90, "ata": FIVE, "gata": 91.0, "gasa": 93.0, "cprr": 97.8, "by_domain": FIVE}
MEAN_OF_CLASSES = "proto_reduction=sample_mean (paper class_mean)"


def test_a_papers_row_stands_next_to_ours(run: MakeRun) -> None:
    runs = [run(method, domains=DIGITS, experiment="f2dc-digits") for method in ("fedavg", "fedbn")]
    table = compare(runs, paper="F2DC.Table 2")
    row, fedbn = table.numbers.rows
    assert row.paper.label == "FedAvg"
    values = {"mnist": 96.04, "usps": 89.84, "svhn": 88.04, "syn": 51.05, "AVG": 81.24, "STD": 20.42}
    printed = {column: value.mean for column, value in row.paper.values.items()}
    assert printed == values | {"WORST": None}  # which no paper prints
    assert row.paper.difference["mnist"] == 0 and row.paper.difference["syn"] == pytest.approx(0.95)
    assert row.paper.difference["AVG"] == pytest.approx((96.04 + 90 + 88 + 52) / 4 - 81.24)
    assert fedbn.paper is None
    (budget,) = [note for note in table.numbers.notes if note.startswith("budget: ")]
    assert "epochs 10 (paper 10), nodes 20 (paper 20)" in budget and "81.24" in table.text()
    assert any(note.startswith("print error: Table 2 FDSE") for note in table.numbers.notes)


@pytest.mark.parametrize(
    ("experiment", "method", "domains", "table", "values"),
    [
        ("digits-small", "fedavg", ("mnist", "usps", "mnistm"), "f2dc.table2", {"mnistm": None, "AVG": None}),
        ("i2pfl-out-digits", "fedavg", DIGITS, "i2pfl.tableiiidigits", {"mnist": 72.02, "usps": None, "AVG": None}),
        ("fedcode-digit5", "fedcode", FIVE, "fedcode.table3", {"ATA mnist": 88.68, "GATA": 91.53, "LTA": None}),
    ],
)
def test_a_column_has_the_printed_value_where_both_mean_the_same(
    run: MakeRun, experiment: str, method: str, domains: Any, table: str, values: dict[str, float | None]
) -> None:
    """A domain that one side lacks, and the means over them, have none; nor has one that was not held out."""
    folder = run(method, domains=dict.fromkeys(domains, 50.0), experiment=experiment, client_models=CLIENTS)
    numbers = compare([folder], paper=table, score="clients" if method == "fedcode" else "last5").numbers
    paper = numbers.rows[0].paper
    assert {column: paper.values[column].mean for column in values} == values
    one_sided = {"in the paper only: svhn, syn", "in the runs only: mnistm"}
    assert (one_sided <= set(numbers.notes)) == (experiment == "digits-small")


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("f2dc.table1b", "dataset.name=pacs"), ("f2dc.table4", "fedshift costs"), ("i2pfl.tablei", "clients"),
        ("fedcode.table3", "--score clients"), ("f2dc.table9", "'f2dc.table9'"),
    ],
)  # fmt: skip
def test_a_table_of_other_runs_is_refused(run: MakeRun, table: str, named: str) -> None:
    with refused(ConfigError, named):
        compare([run("fedavg", domains=DIGITS, experiment="f2dc-digits")], paper=table)


@pytest.mark.parametrize(
    ("experiment", "method", "settings", "table", "altered", "left_open"),
    [
        # F2DC, section 4.3: "each client decoupler, corrector, and m are kept locally"; nothing on how it then scores.
        ("f2dc-pacs", "f2dc", "", "f2dc.table1b", [], []),
        ("f2dc-pacs", "f2dc", "method.local_modules=aggregate method.eval_modules=aggregated", "f2dc.table1b",
         ["local_modules=aggregate (paper local)"], ["eval_modules=aggregated (client_mean)"]),
        ("f2dc-pacs", "f2dc", "method.sigma=5 method.eval_noise=true", "f2dc.table1b", ["sigma=5.0 (paper 0.1)"],
         ["eval_noise=true (false)"]),
        ("f2dc-digits", "moon", "train.threads=2 federation.node_timeout=9 dataset.data_dir=/mine", "f2dc.table2",
         [], []),
        ("f2dc-pacs", "fedavg", "modules=[f2dc] modules.f2dc.sigma=5 modules.f2dc.hidden=32", "f2dc.table3",
         ["modules.f2dc.sigma=5.0 (paper 0.1)", "modules.f2dc.local_modules=aggregate (paper local)"],
         ["modules.f2dc.hidden=32 (64)"]),
        ("i2pfl-out-digits", "i2pfl", "allocation.held_out=[usps,syn]", "i2pfl.tableiiidigits",
         ["allocation.held_out=[usps,syn] (paper [mnist])"], []),

        ("f2dc-digits", "fedavg", "evaluate.bn=[batch] images.eval_batch=256 evaluate.bn_images=10", "f2dc.table2",
         ["images.eval_batch=256 (paper 64)", "evaluate.bn=batch (paper averaged)"], []),
        ("fedicon-table8-without-lie", "fedicon", "adapt.flip=true", "fedicon.table8", [],
         ["tta_flip=true (null)"]),
        # I2PFL: Eqs 5, 8 and 9 are lost in the text at hand.
        ("i2pfl-digits", "i2pfl", "method.augproto_scope=class_set method.ema_weight_on=current method.ema=0.5",
         "i2pfl.tableiidigits", ["ema=0.5 (paper 0.99)"],
         ["augproto_scope=class_set (batch)", "ema_weight_on=current (past)"]),
        # FedSeProto: Eqs 10 and 13 print sums, and Eq. 13 a mean within each class.
        ("fedseproto-pacs", "fedseproto", "", "fedseproto.table2pacs",
         ["reduction=mean (paper sum)", MEAN_OF_CLASSES], []),
        # Of one table alone: the nodes of PACS are printed, those of digits are not; the map of PACS has 16 x 16 units.
        ("fedseproto-pacs", "fedavg", "allocation.counts.photo=1", "fedseproto.table2pacs",
         ["nodes=9 (paper 10)", "allocation.counts={art_painting:3,cartoon:4,photo:1,sketch:1} (paper "
          "{art_painting:3,cartoon:4,photo:2,sketch:1})"], []),
        ("f2dc-office", "fedavg", "dataset.size=64 train.clip=5", "f2dc.table1a", ["train.clip=5.0 (paper null)"],
         ["dataset.size=64 (32)"]),

        # Of a method that is compared with: all its own, and what it asks for; not the same key in another row.
        ("f2dc-office", "fedrcl", "train.clip=5", "f2dc.table1a", [], ["train.clip=5.0 (10.0)"]),

        # Of what adapts at test time over FedAvg, as of the methods of these names.
        ("fedicon-digit5-covariate", "fedavg", "adapt.name=tent adapt.lr=0.01 adapt.steps=3", "fedicon.table1",
         ["adapt.steps=3 (paper 1)", "model.name=cnn (paper cnn_bn)"], ["adapt.lr=0.01 (0.001)"]),
    ],
)  # fmt: skip
def test_each_value_that_is_not_the_papers_is_named_and_what_it_leaves_open_is_not_called_its_own(
    run: MakeRun, experiment: str, method: str, settings: str, table: str, altered: list[str], left_open: list[str]
) -> None:
    numbers = compare([run(method, given=settings, experiment=experiment)], paper=table).numbers
    (row,) = numbers.rows
    assert sorted(one.text for one in row.paper.altered) == sorted(altered)
    assert sorted(one.text for one in row.paper.readings) == sorted(left_open)
    assert all(one.why for one in row.paper.readings) and not any(one.why for one in row.paper.altered)
    named = f"{row.label} with {row.paper.label}"
    starts = [f"not the paper's, {named}: " if altered else f"all as in the paper: {named}"]
    starts += [f"{OPEN}, {named}: "] * bool(left_open) + [
        f"the paper's values are those of conf/experiments/{experiment}"
    ]
    assert all(sum(note.startswith(start) for note in numbers.notes) == 1 for start in starts)


def test_they_are_counted_in_the_table_and_whole_in_csv_and_json(run: MakeRun) -> None:
    settings = "method.eval_modules=none method.sigma=5 train.lr=0.1"
    table = compare([run("f2dc", given=settings, experiment="f2dc-pacs")], paper="f2dc.table1b")
    altered = "sigma=5.0 (paper 0.1), train.lr=0.1 (paper 0.01)"
    assert "ours - paper (2 settings differ)" in table.text()
    (line,) = csv.DictReader(io.StringIO(table.csv()))
    assert line["not the paper's"] == altered.replace(", ", "; ")
    assert line["where the paper is silent"] == "eval_modules=none (client_mean)"
    (row,) = json.loads(table.json())["rows"]
    assert row["altered"] == {
        "method.sigma": {"ours": ["5.0"], "paper": "0.1"}, "train.lr": {"ours": ["0.1"], "paper": "0.01"}
    }  # fmt: skip
    (reading,) = row["readings"].values()
    assert (reading["ours"], reading["reading"]) == (["none"], "client_mean") and reading["why"].endswith(".")
    as_printed = compare([run("f2dc", experiment="f2dc-pacs")], paper="f2dc.table1b")
    assert r"\emph{printed: F2DC}" in as_printed.to_latex()
    assert "ours - paper" in as_printed.text() and "ours - paper (" not in as_printed.text()


@pytest.mark.parametrize(
    ("key", "method", "asked", "adaptation", "reason"),
    [
        ("method.mu", "moon", "", "", "mu"), ("method.tau", "moon", "", "", "all"),
        ("method.mu", "fedprox", "", "", ""), ("train.lr", "fedprox", "", "", "lr"), ("train.clip", "moon", "", "", ""),
        ("train.clip", "moon", "train.clip", "", "all"), ("adapt.lr", "fedavg", "", "tent", "Tent"),
        ("adapt.lr", "fedavg", "", "eata", ""), ("method.tta_lr", "tent", "", "tent", "method"),
    ],
)  # fmt: skip
def test_the_more_exact_key_comes_first_and_that_of_an_adaptation_is_of_rows_with_it(
    key: str, method: str, asked: str, adaptation: str, reason: str
) -> None:
    said = {"moon.*": "all", "moon.mu": "mu", "train.lr": "lr", "adapt.tent.lr": "Tent", "tent.tta_lr": "method"}
    table = printed_module.get("f2dc.table2")
    empty = table.printed.model_copy(update={"readings": {}})
    open_here = replace(table, paper=table.paper.model_copy(update={"readings": said}), printed=empty)
    assert open_here.why_open(key, method, {asked}, adaptation or "none") == reason
