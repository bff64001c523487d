"""Printed rows next to ours: which values are not the paper's, and which it leaves open or prints otherwise."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.notes import OPEN
from fedshift.lab.tables.papers import open_values
from fedshift_core.errors import ConfigError

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
    assert row.paper.values == values | {"WORST": None}  # which no paper prints
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
    assert {column: paper.values[column] for column in values} == values
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
    assert open_values.why_open(said, key, method, {asked}, adaptation or "none") == reason
