"""A comparison in every form: text, Markdown, CSV, JSON and a page with figures, by the command and from Python."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from support import Command

from fedshift.lab.tables.compare import compare
from fedshift_core.errors import ConfigError

MakeRun = Callable[..., Path]


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


@pytest.mark.usefixtures("undrawn_figures")
def test_words_of_others_move_no_cursor_fill_no_table_and_are_escaped(run: MakeRun) -> None:
    hostile = "\x1b[2J\nAVG 100 <script>alert(1)</script>|"
    runs = [run(method, recorded={"git": f"{hostile}{method}"}) for method in ("fedavg", "i2pfl")]
    table = compare(runs)
    for text in (table.text(), table.markdown()):
        assert "not the same git" in text
        assert all(line.isprintable() for line in text.splitlines())
    assert "<script>" not in table.html() + table.markdown() and "&lt;script&gt;" in table.html()
    (runs[0] / "report.html").touch()
    assert f"{runs[0].name}/report.html" in table.html(runs[0].parent / "page.html")
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
