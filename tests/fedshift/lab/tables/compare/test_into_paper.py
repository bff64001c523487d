"""What a comparison gives a paper: LaTeX, long CSV, columns, figures as files."""

import csv
import io
import itertools
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refused
from support import ROOT
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.tables.compare import Comparison, compare
from fedshift.lab.tables.compare.paper_names import column, data_set, escaped, method, row_latex, row_text, text_of
from fedshift.lab.tables.results.statistics import Paired, Spread, corrected
from fedshift_app.config import registry
from fedshift_core.errors import ConfigError

MakeRun = Callable[..., Path]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture
def make_run(run: MakeRun) -> MakeRun:
    """Return a function that writes a finished run of nine rounds, of scan with 180 images and of street with 90."""

    def make(name: str, seed: int, scan: float, street: float, **more: Any) -> Path:
        scores = dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "auc", "ece"), 50.0)
        of = {domain: scores | {"n": n, "images": n} for domain, n in (("scan", 180), ("street", 90))}
        folder = run(name, seed, scan, street, figures={"round": 20, "domains": of}, **more)
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


@pytest.fixture
def grouped(make_run: MakeRun) -> Comparison:
    """FedAvg with two networks, in two groups."""
    networks = ("cnn", "cnn_bn")
    runs = [make_run("fedavg", 0, 60, 40, given=f"model.name={name}") for name in networks]
    return compare(runs, allow_different=True)


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
    rows = {row.method: row for row in table.numbers.rows}
    p = {name: row.difference.p for name, row in rows.items() if row.difference is not None}
    # Four seeds: FedProx 1, 2, 0.5, 1 has t = 1.125 / (0.6292 / 2) = 3.576, p = 0.037; F2DC's mean is 0.
    assert p["fedprox"] == pytest.approx(0.0374, abs=5e-4) and p["f2dc"] == pytest.approx(1.0)
    tested = rows["fedprox"].difference
    assert tested.p_holm == pytest.approx(2 * 0.0374, abs=1e-3)  # F2DC's alone is as large
    avg = 3
    assert r"$^{\ddagger}$" in cells(latex, r"I$^2$PFL")[avg] and r"$^{\dagger}$" in cells(latex, "FedProx")[avg]
    assert "dagger" not in cells(latex, r"F$^2$DC")[avg] and "dagger" not in cells(latex, "FedAvg")[avg]
    others = [cell for name in ("FedProx", "FedBN") for i, cell in enumerate(cells(latex, name)) if i != avg]
    assert "dagger" not in "".join(others) + table.to_latex(["scan"])
    notes = latex.partition(r"\begin{minipage}")[2]
    assert "correction for 5 comparisons" in notes and "over 4 seeds" in notes


def test_the_corrected_p_stands_next_to_p_in_every_form(table: Comparison) -> None:
    by_method = {row.method: row.difference for row in table.numbers.rows}
    tested = by_method["fedprox"]
    assert tested.p is not None and tested.p_holm is not None
    first, second = f"{tested.p:.3f}", f"{tested.p_holm:.3f}"
    assert first != second
    assert re.search(rf"{first} +{second}", table.text(width=200))
    (record,) = [row for row in json.loads(table.json())["rows"] if row["method"] == "fedprox"]
    (of_csv,) = [row for row in csv.DictReader(io.StringIO(table.csv())) if row["method"] == "fedprox"]
    assert (record["p"], record["p (Holm)"]) == (tested.p, tested.p_holm)
    assert (of_csv["p"], of_csv["p (Holm)"]) == (str(tested.p), str(tested.p_holm))


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


def test_a_label_says_parameters_tuning_and_approximation(make_run: MakeRun) -> None:
    runs = [make_run("i2pfl", s, 60 + s, 40, given=f"method.tau={tau}") for s in range(2) for tau in ("0.07", "0.02")]
    rows = compare([*runs, make_run("fedmlp", 0, 50, 40), make_run("f2dc-code", 0, 50, 40)]).numbers.rows
    assert [row_latex(row) for row in rows] == [
        "F$^2$DC (released code)", "I$^2$PFL (tau=0.02)", "I$^2$PFL (tau=0.07)", "FedMLP (approximation)",
    ]  # fmt: skip
    assert [row_text(row) for row in rows][1] == "I²PFL (tau=0.02)"


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


#: What LaTeX prints for each command that stands for a letter.
LETTERS = {
    "textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<", "textgreater": ">",
    "textbar": "|", "dots": "…",
}  # fmt: skip
SYMBOLS = {"pm": "±", "times": "\u00d7", "dagger": "†"}


def read_back(latex: str) -> str:
    """Return what LaTeX prints, by a reader that knows nothing of how it was written; fails on what it would refuse."""
    out, i = "", 0
    while i < len(latex):
        rest = latex[i:]
        if found := re.match(r"\\([a-zA-Z]+)\{\}", rest):
            out += LETTERS[found[1]]
        elif found := re.match(r"\$\\([a-z]+)\$", rest):
            out += SYMBOLS[found[1]]
        elif found := re.match(r"\{''\}", rest):
            out += '"'
        elif found := re.match(r"\\([{}$&%#_])", rest):
            out += found[1]
        else:
            found = re.match(r"[^\\{}$&%#_~^]", rest)
            assert found is not None, rest
            out += found[0]
        i += len(found[0])
    return out


@given(st.text(st.sampled_from("abcÄé1 \\{}$&%#_~^<>|\"±\u00d7†…\n\t'-"), max_size=20))
def test_any_text_is_printed_letter_by_letter(text: str) -> None:
    assert read_back(escaped(text)) == " ".join(text.split())


def check_latex(latex: str) -> None:
    """Check a table as TeX would: environments nest, braces and dollars pair, each row has all cells."""
    code = "\n".join(line for line in latex.splitlines() if not line.startswith("%"))
    assert max(map(ord, code)) < 0x2000 and "%" not in code.replace(r"\%", "").replace("{!}{%\n", "")
    bare = re.sub(r"\\[{}$&%#_\\]", "", code)
    depth = list(itertools.accumulate({"{": 1, "}": -1}.get(letter, 0) for letter in bare))
    assert min(depth) == depth[-1] == 0 and bare.count("$") % 2 == 0
    stack: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z]+\*?)\}", code):
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    (layout,) = re.findall(r"\\begin\{tabular\}\{([lc]+)\}\n", code)
    for row in re.findall(r"^(.*) \\\\$", code.partition(r"\toprule")[2].partition(r"\bottomrule")[0], re.M):
        spans = [int(number) - 1 for number in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        assert len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) == len(layout), row
    assert not re.search(r"[_^~#]", re.sub(r"\$[^$]*\$|\\label\{.*?\}", "", bare))


def test_tables_compile(table: Comparison, grouped: Comparison) -> None:
    """As far as an independent reader tells: odd names, a wide line, a narrow table."""
    odd = escaped('a_b & c% #1 {x} ~^ <|> "q" ±†…')
    caption = r"Top-1 accuracy (\%), 50 \& more: $\pm$."
    pacs = compare([RESULTS / "pacs"], paper="f2dc.table1b", allow_different=True).to_latex()
    out = compare([RESULTS / "out-pacs-cnn"], allow_different=True, held_out=True).to_latex()
    tables = [
        table.to_latex(),
        table.to_latex(["AVG"], 0, caption, "tab:one"),
        grouped.to_latex(caption=odd),
        pacs,
        out,
    ]
    for latex in tables:
        check_latex(latex)
    assert f"\\caption{{{caption}}}" in tables[1] and r"\emph{Global model (model.name=cnn\_bn)}" in tables[2]
    assert r"\quad \emph{printed: " in pacs and r"\caption{PACS: top-1 accuracy (\%)" in pacs


def test_columns_are_chosen_and_ordered_and_wrong_names_refused(table: Comparison) -> None:
    chosen = table.with_columns(["AVG", "scan"])
    head = chosen.text().splitlines()[2].split()
    assert head[:5] == ["method", "scored", "n", "AVG", "scan"] and "p" in head
    assert "| method | scored | n | scan |" in table.with_columns(["scan"]).markdown()  # no difference of AVG
    assert "| 61.5 ± 1.3 |" in table.with_columns(["scan"]).markdown(1) and "62 ± 1" in chosen.text(decimals=0)
    for wrong, named in ((["scna"], "'scna'"), (["AVG", "AVG"], "'AVG' comes twice")):
        with refused(ConfigError, "--columns: ", named):
            table.to_latex(wrong)
    with refused(ConfigError, "'domain'", "did you mean domains"):
        table.figure("domain")
    labels = [label.get_text() for label in table.figure("domains").axes[0].get_yticklabels()]
    assert labels == ["FedAvg", "F²DC", "I²PFL", "FedProx", "FedBN", "Local"]


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_long_csv_has_a_line_for_each_run_and_domain(table: Comparison, tmp_path: Path) -> None:
    table.to_csv(tmp_path / "runs.csv")
    lines = read_csv((tmp_path / "runs.csv").read_text())
    assert len(lines) == 6 * 4 * 2
    line = next(one for one in lines if (one["method"], one["seed"], one["domain"]) == ("i2pfl", "1", "street"))
    assert (float(line["value"]), line["images"], line["round"], line["averaged rounds"]) == (43.1, "90", "20", "5")
    assert Path(line["run"]).name.startswith("i2pfl-1-") and line["measure"] == "accuracy"
    runs = [run.place for row in table.numbers.rows for run in row.runs][:2]
    auc = read_csv(compare(runs, score="auc").runs_csv())
    assert {(one["measure"], one["value"]) for one in auc} == {("AUC", "50.0")}


def test_figures_are_files_in_three_formats_with_their_curves(table: Comparison, tmp_path: Path) -> None:
    assert table.figure_names == ("difference", "curves", "domains", "AVG", "scan", "street", "WORST")
    runs = tmp_path / "runs"
    call("compare", runs, "--csv", tmp_path / "r.csv", "--table-csv", tmp_path / "t.csv",
         "--figures", tmp_path / "figures", "--columns", "AVG")  # fmt: skip
    assert (tmp_path / "r.csv").read_text() == table.runs_csv() and (tmp_path / "t.csv").read_text() == table.csv()
    files = {file.name: file for file in (tmp_path / "figures").iterdir()}
    assert files.keys() == {f"{name}.{ending}" for name in table.figure_names for ending in ("pdf", "svg", "png")} | {
        "curves.csv", "captions.txt",
    }  # fmt: skip
    theme = (ROOT / "fedshift" / "run" / "html" / "templates" / "light.css").read_text()
    known = {tuple(bytes.fromhex(colour)) for colour in re.findall(r"--(?:d\d|fg|grid):#([0-9a-f]{6})", theme)}
    assert len(known) == 10
    for name, file in files.items():
        if file.suffix == ".png":
            colours = {colour for _, colour in Image.open(file).convert("RGB").getcolors(1 << 20)}
            assert (255, 255, 255) in colours and known & colours, name
        elif file.suffix == ".svg":
            assert ET.parse(file).getroot().tag.endswith("svg")
            allowed = {"#ffffff", "#000000", *(f"#{bytes(colour).hex()}" for colour in known)}
            assert set(re.findall(r"#[0-9a-f]{6}", file.read_text())) <= allowed
        elif file.suffix == ".pdf":
            assert file.read_bytes().startswith(b"%PDF-")
    curves = read_csv(files["curves.csv"].read_text())
    assert len(curves) == 6 * 4 * 9
    (one,) = [line for line in curves if (line["method"], line["seed"], line["round"]) == ("fedprox", "1", "9")]
    assert float(one["AVG"]) == pytest.approx(53.0)  # 60 + 1 + 2 and 40 + 1 + 2
    assert "\ndomains: Scan, Street: top-1 accuracy (%)" in files["captions.txt"].read_text()


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
        (("--latex", "--json"), "--latex or --json"), (("--caption", "C"), "--caption is of --latex"),
        (("--json", "--columns", "AVG"), "--columns and --json"), (("--columns", "AVG,"), "--columns: ''"),
        (("--sites", "auroc", "--latex"), "--sites and --latex"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(run: MakeRun, options: Sequence[str], named: str) -> None:
    with refused(ConfigError, named):
        CliRunner().invoke(cli.app, ["compare", str(run("fedavg")), *options], catch_exceptions=False)
