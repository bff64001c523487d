"""A comparison in every form: text, Markdown, CSV, JSON and a page with figures, by the command and from Python."""

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from support import Command, undrawn

from fedshift.lab.tables.compare import compare, keep
from fedshift_core.errors import ConfigError

MakeRun = Callable[..., Path]


def with_rounds(folder: Path, avgs: list[float | None]) -> None:
    """Write the rounds of a run; None: a domain is missing. The last one is scored on a part of the images."""
    lines = [{"round": n, "accuracy": {"scan": 10.0, "street": avg and 2 * avg - 10}} for n, avg in enumerate(avgs, 1)]
    lines[-1]["evaluated_share"] = 0.5
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.usefixtures("undrawn_figures")
def test_all_formats_show_the_same_numbers(three_seeds: list[Path], read_page: Any) -> None:
    table = compare(three_seeds)
    page, text, markdown = read_page(table.html()), table.text(10_000), table.markdown()
    for shown in ("52.00 ± 2.00", "54.00 ± 2.65", "+2.00 ± 1.00", "0.074"):
        assert shown in page.texts("td") and shown in text and shown in markdown
    for note in table.numbers.notes:
        assert note in page.texts("li") and note in text and note in markdown.replace("\\", "")
    for width in (60, 100):
        assert max(map(len, table.text(width).splitlines())) <= width
    fedavg, i2pfl = csv.DictReader(io.StringIO(table.csv()))
    assert float(fedavg["AVG"]) == 52 and float(i2pfl["difference"]) == 2 and i2pfl["seeds"] == "0 1 2"
    assert json.loads(table.json())["rows"][1]["by_seed"]["1"]["AVG"] == 55
    assert len({line.count("|") for line in markdown.splitlines() if line.startswith("|")}) == 1


def test_the_page_has_figures_facts_and_ways_to_the_reports(
    three_seeds: list[Path], tmp_path: Path, read_page: Any
) -> None:
    place = tmp_path / "my pages" / "c.html"
    for folder in three_seeds:
        with_rounds(folder, [20.0, None, 40.0 if "i2pfl" in folder.name else 30.0, 90.0])
        results = json.loads((folder / "results.json").read_text())  # whose mean is of other rounds
        (folder / "results.json").write_text(json.dumps(results | {"unscored": {}}))
    renamed = three_seeds[0].rename(three_seeds[0].with_name("odd name #1&"))
    (renamed / "report.html").write_text("")
    runs = [renamed, *three_seeds[1:]]
    table = compare(runs)
    page = read_page(table.html(place))
    assert [link["href"] for link in page.all("a")] == ["../runs/odd%20name%20%231%26/report.html"]
    differences, rounds, avg, *others = page.plots()
    assert [label.partition(":")[0] for label in others] == ["scan", "street", "WORST"]
    assert "i2pfl +2.00 (-0.48 to +4.48)" in differences
    assert avg.endswith("fedavg 52.00 (50.00 to 54.00); i2pfl 54.00 (51.35 to 56.65).")
    # A round without a domain, and one scored on a part, are no points of a curve.
    assert rounds == "AVG over the rounds: fedavg 30.00 in round 3; i2pfl 40.00 in round 3."
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts | {"rounds": "20", "network": "cnn", "nodes": "2", "seeds": "3"} == facts
    with undrawn():
        assert read_page(table.html()).all("a") == []  # nobody knows from where
        again = read_page(compare(keep(runs, tmp_path / "kept")).html(place))
    assert (again.plots(), again.all("a")) == (page.plots(), [])


def test_a_folder_that_is_not_utf_8_is_linked(three_seeds: list[Path], tmp_path: Path) -> None:
    renamed = three_seeds[0].rename(os.fsdecode(os.fsencode(three_seeds[0]) + b"\xff"))
    (renamed / "report.html").write_text("")
    table = compare([renamed, *three_seeds[1:]])
    with undrawn():
        page = table.html(tmp_path / "c.html")
    assert page.encode() and f"{three_seeds[0].name}%FF/report.html" in page and f"{three_seeds[0].name}\\xff<" in page
    table.to_board(tmp_path / "b.html")
    assert "\\udcff" in (tmp_path / "b.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn_figures")
def test_words_of_others_move_no_cursor_fill_no_table_and_are_escaped(run: MakeRun) -> None:
    hostile = "\x1b[2J\nAVG 100 <script>alert(1)</script>|"
    runs = [run(method, recorded={"git": f"{hostile}{method}"}) for method in ("fedavg", "i2pfl")]
    table = compare(runs)
    for text in (table.text(), table.markdown()):
        assert "not the same git" in text
        assert all(line.isprintable() for line in text.splitlines())
    assert "<script>" not in table.html() + table.markdown() and "&lt;script&gt;" in table.html()
    file = runs[0] / "results.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"domains": {f"\x1b[2J{i}": 1.0 for i in range(900)}}))
    with refused(ConfigError, "domains: ", "500") as caught:
        compare(runs)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


@pytest.mark.usefixtures("undrawn_figures")
def test_the_command(three_seeds: list[Path], tmp_path: Path, fedshift: Command) -> None:
    page, table = tmp_path / "c.html", tmp_path / "c.csv"
    code, out, _ = fedshift("compare", *three_seeds, "--html", page, "--table-csv", table, "--keep", tmp_path / "kept")
    assert code == 0 and "+2.00 ± 1.00" in out and len(list((tmp_path / "kept").iterdir())) == 6
    assert page.read_text() == compare(three_seeds).html() and table.read_text() == compare(three_seeds).csv()
    code, out, _ = fedshift("compare", three_seeds[0].parent, "--json")
    assert code == 0 and json.loads(out)["columns"] == ["scan", "street", "AVG", "STD", "WORST"]
    missing = tmp_path / "no" / "c.csv"
    code, _, err = fedshift("compare", three_seeds[0], "--csv", missing)
    assert code == 1 and err.startswith("error: ") and str(missing) in err
