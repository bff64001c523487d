"""What a comparison gives a paper: LaTeX, long CSV, columns, figures as files."""

import csv
import io
import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from support import Command
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.tables.compare import Comparison, compare
from fedshift.lab.tables.compare.paper_names import column, data_set, escaped, method, text_of
from fedshift.lab.tables.results.statistics import Paired, Spread, corrected
from fedshift_app.config import registry
from fedshift_core.errors import ConfigError

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(run: MakeRun, figures_of: Any) -> MakeRun:
    """Return a function that writes a finished run of nine rounds, of scan with 180 images and of street with 90."""

    def make(name: str, seed: int, scan: float, street: float, **more: Any) -> Path:
        figures = figures_of(50.0, 50.0) | {"round": 20}
        for domain, n in (("scan", 180), ("street", 90)):
            figures["domains"][domain] |= {"n": n, "images": n}
        folder = run(name, seed, scan, street, figures=figures, **more)
        lines = [{"round": n, "accuracy": {"scan": scan - 9 + n, "street": street - 9 + n}} for n in range(1, 10)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return make


@pytest.fixture
def table(make_run: MakeRun) -> Comparison:
    """Four seeds. AVG less FedAvg's: I2PFL 2.0, 2.1, 1.9, 2.0; FedProx 1, 2, 0.5, 1; F2DC 0 on average; FedBN below."""
    by = {
        "fedavg": (0.0, 0.0, 0.0, 0.0), "i2pfl": (2.0, 2.1, 1.9, 2.0), "fedprox": (1.0, 2.0, 0.5, 1.0),
        "f2dc": (-1.0, 1.0, -0.5, 0.5), "fedbn": (-5.0, -5.2, -5.1, -5.0), "local": (-9.0, -9.3, -9.1, -9.0),
    }  # fmt: skip
    gains = [(name, seed, gain) for name, values in by.items() for seed, gain in enumerate(values)]
    return compare([make_run(name, seed, 60 + seed + gain, 40 + seed + gain) for name, seed, gain in gains])


def cells(latex: str, name: str) -> list[str]:
    """Return the cells of the line between the rules that begins with a name."""
    body = latex.partition(r"\toprule")[2].partition(r"\bottomrule")[0].splitlines()
    (line,) = [line.strip() for line in body if line.strip().startswith(f"{name} &")]
    return [cell.strip() for cell in line.removesuffix(r"\\").split("&")]


def test_best_and_second_are_of_each_task(table: Comparison) -> None:
    latex = table.to_latex()
    assert cells(latex, r"I$^2$PFL")[1] == r"\textbf{63.50} {\scriptsize$\pm$1.27}"
    # FedProx: 60 + (0 + 1 + 2 + 3) / 4 + 4.5 / 4 = 62.625, the second of the global models: FedAvg has 61.5.
    assert cells(latex, "FedProx")[1].startswith(r"\underline{62.62} ")
    assert cells(latex, "FedAvg")[1].startswith("61.50 ")
    # Personal models are another task: FedBN is the best of it, and Local the second, though both are below FedAvg.
    assert cells(latex, "FedBN")[1].startswith(r"\textbf{56.42} ")
    assert cells(latex, "Local")[1].startswith(r"\underline{")
    assert re.findall(r"multicolumn.*emph\{(.*?)\}", latex) == ["Global model", "Personal models"]


def test_significance_is_marked_at_the_column_that_was_tested(table: Comparison) -> None:
    latex = table.to_latex()
    p = {row.method: (row.difference.p, row.difference.p_holm) for row in table.numbers.rows if row.difference}
    # Four seeds: FedProx 1, 2, 0.5, 1 has t = 1.125 / (0.6292 / 2) = 3.576, p = 0.037; F2DC's mean is 0.
    assert p["fedprox"] == pytest.approx((0.0374, 2 * 0.0374), abs=1e-3)  # F2DC's alone is as large
    assert p["f2dc"][0] == pytest.approx(1.0)
    avg = 3
    assert r"$^{\ddagger}$" in cells(latex, r"I$^2$PFL")[avg] and r"$^{\dagger}$" in cells(latex, "FedProx")[avg]
    assert "dagger" not in cells(latex, r"F$^2$DC")[avg] + cells(latex, "FedAvg")[avg] + table.to_latex(["scan"])
    assert latex.count("dagger}$}") + latex.count("dagger}$ &") == latex.partition(r"\bottomrule")[0].count("dagger")
    notes = latex.partition(r"\begin{minipage}")[2]
    assert "correction for 5 comparisons" in notes and "over 4 seeds" in notes
    # The corrected p stands next to p in every form.
    assert re.search(r"{:.3f} +{:.3f}".format(*p["fedprox"]), table.text(width=200))
    for rows in (json.loads(table.json())["rows"], csv.DictReader(io.StringIO(table.csv()))):
        (record,) = [row for row in rows if row["method"] == "fedprox"]
        assert (float(record["p"]), float(record["p (Holm)"])) == p["fedprox"]


@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=5))
def test_holm_is_the_closed_test_of_bonferroni(values: list[float | None]) -> None:
    """A hypothesis' corrected p is the largest Bonferroni p over all sets of hypotheses that hold it."""
    known = {i: p for i, p in enumerate(values) if p is not None}
    sets = [chosen for size in range(1, len(known) + 1) for chosen in itertools.combinations(known, size)]
    expected = [
        max(min(1.0, len(chosen) * min(known[j] for j in chosen)) for chosen in sets if i in chosen) for i in known
    ]
    result = corrected([*(Paired(Spread(1.0, 1.0, 3), (0, 1, 2), p) for p in values), None])
    assert result.pop() is None
    assert [row.p_holm for row in result if row is not None and row.p is not None] == pytest.approx(expected)
    assert [row and row.p for row in result] == values


def test_names_are_printed_as_papers_have_them() -> None:
    """Each method's is whole LaTeX; capitals of a column stay."""
    for name in registry.METHODS:
        if registry.METHODS.origin(name) == "fedshift":
            latex = registry.get(name).latex
            assert latex and latex.count("$") % 2 == 0 and not re.search(r"[&%#_~]|(?<!\$)\^", latex), name
            assert "$" not in text_of(name), name
    assert method("my_method") == r"my\_method" and text_of("my_method") == "my_method"
    columns = ("art_painting", "mnistm", "AVG", "ATA scan", "siteMRI_two")
    assert [column(name) for name in columns] == ["Art Painting", "MNIST-M", "AVG", "ATA Scan", "SiteMRI Two"]
    assert [data_set(name) for name in ("digit5", "handwritten")] == ["Digit-5", "handwritten"]


#: What LaTeX prints for each command that stands for a letter, and for each letter that is escaped.
PRINTED = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textless{}": "<",
    r"\textgreater{}": ">", r"\textbar{}": "|", r"\dots{}": "…", r"$\pm$": "±", r"$\times$": "\u00d7",
    r"$\dagger$": "†", "{''}": '"',
} | {f"\\{letter}": letter for letter in "{}$&%#_"}  # fmt: skip


@given(st.text(st.sampled_from("abcÄé1 \\{}$&%#_~^<>|\"±\u00d7†…\n\t'-"), max_size=20))
def test_any_text_is_printed_letter_by_letter(text: str) -> None:
    """By a reader that knows nothing of how it was written; it fails on what LaTeX would refuse."""
    written = "|".join([*map(re.escape, PRINTED), r"[^\\{}$&%#_~^]"])
    assert re.fullmatch(f"({written})*", latex := escaped(text))
    assert "".join(PRINTED.get(part, part) for part in re.findall(written, latex)) == " ".join(text.split())


def test_columns_are_chosen_and_ordered_and_wrong_names_refused(table: Comparison) -> None:
    chosen = table.with_columns(["AVG", "scan"])
    head = chosen.text().splitlines()[2].split()
    assert head[:5] == ["method", "scored", "n", "AVG", "scan"] and "p" in head
    assert "| method | scored | n | scan |" in table.with_columns(["scan"]).markdown()  # no difference of AVG
    assert "| 61.5 ± 1.3 |" in table.with_columns(["scan"]).markdown(1) and "62 ± 1" in chosen.text(decimals=0)
    for wrong, named in (([], "no column is named"), (["scna"], "'scna'"), (["AVG", "AVG"], "'AVG' comes twice")):
        with refused(ConfigError, "--columns: ", named):
            table.to_latex(wrong)
    with refused(ConfigError, "'column'", "did you mean columns"):
        table.figure("column")
    labels = [label.get_text() for label in table.figure("columns").axes[0].get_yticklabels()]
    assert labels == ["FedAvg", "F²DC", "I²PFL", "FedProx", "FedBN", "Local"]


def test_figures_are_files_in_three_formats_with_their_curves(table: Comparison, tmp_path: Path) -> None:
    assert table.figure_names == ("difference", "curves", "columns")
    figures = tmp_path / "figures"
    call("compare", tmp_path / "runs", "--csv", tmp_path / "r.csv", "--table-csv", tmp_path / "t.csv",
         "--figures", figures, "--columns", "AVG")  # fmt: skip
    table.to_csv(tmp_path / "runs.csv")
    for name, text in (("r", table.runs_csv()), ("runs", table.runs_csv()), ("t", table.csv())):
        assert (tmp_path / f"{name}.csv").read_text() == text
    assert {file.name for file in figures.iterdir()} == {"curves.csv", "captions.txt"} | {
        f"{name}.{ending}" for name in table.figure_names for ending in ("pdf", "svg", "png")
    }
    for name in table.figure_names:
        assert ET.fromstring((figures / f"{name}.svg").read_text()).tag.endswith("svg")
        assert (figures / f"{name}.pdf").read_bytes().startswith(b"%PDF-")
    curves = list(csv.DictReader((figures / "curves.csv").open()))
    assert len(curves) == 6 * 4 * 9
    (one,) = [line for line in curves if (line["method"], line["seed"], line["round"]) == ("fedprox", "1", "9")]
    assert float(one["AVG"]) == pytest.approx(53.0)  # 60 + 1 + 2 and 40 + 1 + 2
    assert "\ncolumns: AVG: top-1 accuracy (%)" in (figures / "captions.txt").read_text()
    failed = CliRunner().invoke(cli.app, ["compare", str(tmp_path / "runs"), "--figures", str(tmp_path / "r.csv")])
    assert isinstance(failed.exception, ConfigError) and "--figures: cannot write" in str(failed.exception)


def call(*arguments: object) -> str:
    result = CliRunner().invoke(cli.app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_command(table: Comparison, tmp_path: Path) -> None:
    runs = sorted((tmp_path / "runs").iterdir())
    out = call("compare", *runs, "--latex", "--columns", "scan,AVG", "--decimals", 1, "--label", "tab:x")
    assert out.rstrip("\n") == table.to_latex(["scan", "AVG"], 1, label="tab:x")
    assert call("compare", "--latex", *runs) == table.to_latex() + "\n", "no file of this name is written"
    call("compare", "--latex", tmp_path / "table.tex", *runs)
    assert (tmp_path / "table.tex").read_text() == table.to_latex()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--latex --json", "--latex or --json"), ("--caption C", "--caption is of --latex"),
        ("--json --columns AVG", "--columns and --json"), ("--columns AVG,", "--columns: ''"),
        ("--sites auroc --latex", "--sites and --latex"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(run: MakeRun, options: str, named: str) -> None:
    with refused(ConfigError, named):
        CliRunner().invoke(cli.app, ["compare", str(run("fedavg")), *options.split()], catch_exceptions=False)


# --- in every form ------------------------------------------------------------------------------------------


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
def test_the_command_writes_a_page_and_a_table(three_seeds: list[Path], tmp_path: Path, fedshift: Command) -> None:
    page, table = tmp_path / "c.html", tmp_path / "c.csv"
    code, out, _ = fedshift("compare", *three_seeds, "--html", page, "--table-csv", table, "--keep", tmp_path / "kept")
    assert code == 0 and "+2.00 ± 1.00" in out and len(list((tmp_path / "kept").iterdir())) == 6
    assert page.read_text() == compare(three_seeds).html() and table.read_text() == compare(three_seeds).csv()
    code, out, _ = fedshift("compare", three_seeds[0].parent, "--json")
    assert code == 0 and json.loads(out)["columns"] == ["scan", "street", "AVG", "STD", "WORST"]
    missing = tmp_path / "no" / "c.csv"
    code, _, err = fedshift("compare", three_seeds[0], "--csv", missing)
    assert code == 1 and err.startswith("error: ") and str(missing) in err
