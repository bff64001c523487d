"""The papers' printed tables: the same digits as in the papers, and rows and columns of ours that exist."""

import json
import re
import shlex
from typing import Any

import pytest
import yaml
from refusals import refused
from support import ROOT

from fedshift.lab.tables.papers import open_values
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
    assert expected in ((row.method, str(row.value("AVG")), str(row.value("Avg"))) if row else (None,))


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
                    assert rest in (open_values.ALL, *registry.get(first).known_keys()), key
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
