"""The papers' printed tables: the same digits as in the papers, and rows and columns of ours that exist."""

import json
import re

import pytest
import yaml
from support import ROOT

from datasets import catalog
from fedshift_app.comparing import papers
from fedshift_app.comparing.papers import Table
from fedshift_app.config.files import CONF, names
from fedshift_app.config.keys import as_asked, flat
from fedshift_app.config.resolving import resolve
from fedshift_wire.errors import ConfigError
from fedshift_wire.yaml_files import read_yaml

TABLES = papers.all_tables()
#: What the project adds to the printed facts.
ADDED = ("methods", "beside", "budget")
#: What our columns may be besides domains.
MEASURES = re.compile(r"AVG|STD|LTA|GASA|GATA|CPRR|(ATA|all on) \w+|all on AVG")


@pytest.mark.parametrize("name", names("papers"))
def test_every_digit_is_that_of_the_shared_tables(name: str) -> None:
    shared = ROOT.parent / "shared" / "tables" / f"{name}.yaml"
    if not shared.is_file():
        pytest.skip("the tables that were copied are not beside this checkout")
    ours = yaml.load((CONF / "papers" / f"{name}.yaml").read_text(), Loader=yaml.BaseLoader)  # digits as text
    theirs = yaml.load(shared.read_text(), Loader=yaml.BaseLoader)
    for section in (ours, *ours["tables"]):
        for key in ADDED:
            section.pop(key, None)
    assert ours == theirs


def test_ids_differ_and_are_found_whatever_their_case_and_spaces() -> None:
    ids = [table.id for table in TABLES]
    assert len(set(ids)) == len(ids) == len(papers.lines()) == 43
    for asked in ("f2dc.table1b", "F2DC.Table 1b", " f2dc . TABLE1B "):
        assert papers.get(asked).printed.dataset == "PACS"
    with pytest.raises(ConfigError, match=r"unknown table 'f2dc.1'; there are f2dc.table1a, .*i2pfl.tableviipacs"):
        papers.get("f2dc.1")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.id)
def test_what_a_table_stands_for_exists(table: Table) -> None:
    labels = {row.method for row in table.printed.rows}
    assert table.printed.methods.keys() <= labels
    for row in table.printed.rows:
        assert set(row.values) == set(table.printed.columns)
        ours = table.stands_for(row)
        if ours:
            given = " ".join(f"{key}={json.dumps(value)}" for key, value in ours.items() if key != "method.name")
            config = resolve({"method": ours["method.name"], "rounds": 30, "set": given})
            settings = as_asked(flat(config.model_dump(mode="json")))
            assert {key: settings[key] for key in ours} == ours
    for beside in table.printed.beside:
        domains = {domain for name in beside.dataset for domain in catalog.get(name).domains}
        assert beside.columns.keys() <= set(table.printed.columns)
        for column in beside.columns.values():
            assert column in domains or MEASURES.fullmatch(column), column


def test_the_tables_of_experiments_are_here() -> None:
    for name in names("experiments"):
        experiment = read_yaml(CONF / "experiments" / f"{name}.yaml")
        if "paper" in experiment:
            assert experiment["dataset"]["name"] in {
                dataset for beside in papers.get(experiment["paper"]).printed.beside for dataset in beside.dataset
            }


def test_a_row_is_chosen_by_its_settings() -> None:
    table = papers.get("f2dc.table5")
    plain = {"method.name": "f2dc", "modules": "none", "adapt.name": "none"}
    found = table.row(plain | {"method.sigma": 0.3})
    assert found is not None and found.value("AVG") == 75.34
    assert table.row(plain | {"method.sigma": 0.2}) is None
    carried = papers.get("f2dc.table1b").row({"method.name": "fedavg", "modules": "f2dc", "adapt.name": "none"})
    assert carried is None  # FedAvg with modules is not FedAvg
    carried = papers.get("f2dc.table3").row({"method.name": "fedavg", "modules": "f2dc", "adapt.name": "none"})
    assert carried is not None and carried.method == "FedAvg+DFD+DFC"


def test_a_method_with_a_part_switched_off_stands_beside_no_row_of_the_whole() -> None:
    table = papers.get("fedicon.table1")
    whole = {"modules": "none", "adapt.name": "none", **table.stands_for(table.printed.rows[-1])}
    found = table.row(whole)
    assert found is not None and found.method == "FedICON"
    assert table.row(whole | {"method.tta": False}) is None


def test_fedproto_shares_weights_where_the_paper_has_one_global_model() -> None:
    ours = {"method.name": "fedproto", "modules": "none", "adapt.name": "none"}
    for id_ in ("i2pfl.tableiidigits", "fedseproto.table1digits"):
        assert papers.get(id_).row(ours | {"method.share_weights": False}) is None
        assert papers.get(id_).row(ours | {"method.share_weights": True}) is not None
    assert papers.get("fedseproto.table3").row(ours | {"method.share_weights": False}) is not None


def test_a_row_whose_label_was_lost_stands_beside_nothing() -> None:
    table = papers.get("i2pfl.tableivdigits")
    lost = [row for row in table.printed.rows if not row.label_certain]
    assert [row.method for row in lost] == ["w/o APA", "w/o GPCL"]
    assert all(not table.stands_for(row) for row in lost)


def test_print_errors_belong_to_their_table() -> None:
    assert papers.get("f2dc.table1b").checks() == [
        "Table 1b F2DC (PACS): sample STD of domains = 5.93 (population 5.14), printed STD = 5.83"
    ]


def test_a_printed_spread_is_kept() -> None:
    table = papers.get("fedicon.table1")
    row = table.row({"modules": "none", "adapt.name": "none", **table.stands_for(table.printed.rows[-1])})
    assert row is not None and (row.value("MNIST"), row.spread("MNIST")) == (89.67, 1.48)
