"""`fedshift compare --board`: its tables are those of `compare`, its commands make the runs, its page escapes names."""

import base64
import csv
import hashlib
import html
import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import write_run
from support import ROOT
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.grid.sweep import grid
from fedshift.lab.tables.compare import board, board_page, compare
from fedshift.lab.tables.results import loading
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError

pytestmark = pytest.mark.usefixtures("kept_runs_once")

MakeRun = Callable[..., Path]
RESULTS = ROOT / "docs" / "results"
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)
SCRIPT = re.compile(r"<script>(.*?)</script>", re.S)
TWO = "dataset.domains=[scan,street]"


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return a function that writes the folder of a finished run."""

    def make(
        method: str, seed: int, domains: Mapping[str, float], *, given: str = TWO, name: str = "", under: str = "runs",
        recorded: Mapping[str, Any] = {}, flat: Mapping[str, Any] = {}, **results: Any,
    ) -> Path:  # fmt: skip
        config = resolve({"experiment": "handwritten", "method": method, "seed": seed, "set": given, **flat})
        folder = tmp_path / under / (name or f"{method}-{seed}-{len(list(tmp_path.glob('*/*')))}")
        return write_run(folder, config, domains, recorded, personal=method == "fedbn", **results)

    return make


def two(scan: float, street: float) -> dict[str, float]:
    return {"scan": scan, "street": street}


def data_of(page: str) -> dict[str, Any]:
    """Return what a page holds, as its script reads it."""
    (text,) = DATA.findall(page)
    content: dict[str, Any] = json.loads(text)
    return content


def tables_of(*paths: Path) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = data_of(board_page.page(board.board(paths)))["tables"]
    return tables


# --- The kept runs: rows and values are those of compare ---


@pytest.mark.parametrize(
    ("folders", "options", "split", "statistics"),
    [
        (("pacs-cnn3",), {}, "in-domain", "averaged"),
        (("pacs-resnet10-switches",), {"score": "bn=own"}, "in-domain", "own"),
        (("pacs-pretrained-out",), {"held_out": True}, "held out", "averaged"),
        (("digits-cnn", "digits-cnn-fpl"), {}, "in-domain", "averaged"),
    ],
)
def test_a_table_of_the_kept_runs_is_that_of_compare(
    folders: tuple[str, ...], options: dict[str, Any], split: str, statistics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    paths = [RESULTS / name for name in folders]
    (table,) = [t for t in tables_of(*paths) if (t["split"], t["statistics"]) == (split, statistics)]
    expected = json.loads(compare(paths, **options).json())
    assert (table["title"], table["columns"]) == (expected["title"], expected["columns"])
    assert (table["notes"], table["warnings"]) == (expected["notes"], expected["warnings"])
    assert len(table["rows"]) == len(expected["rows"]) > 1
    for row, other in zip(table["rows"], expected["rows"], strict=True):
        assert {key: row[key] for key in other} == other
    printed = compare(paths, **options).text(width=10_000)
    for row in table["rows"]:
        assert all(cell in printed for cell in row["cells"][:-1]) and row["cells"][-1] == f"{row['MB a round']:.2f}"
    assert table["head"][1] == "AVG" and table["head"][-1] == "MB a round"
    # The command of the table prints it.
    done = CliRunner().invoke(cli.app, [*shlex.split(table["command"])[1:], "--json"])
    assert json.loads(done.stdout)["rows"] == expected["rows"]


def test_the_command_of_each_kept_row_makes_its_runs() -> None:
    """A resolved command is the run's configuration, whichever way it was written down."""
    place = RESULTS / "pacs-pretrained-out"
    runs = {run.name: run for run in loading.read([place]).runs}
    (table,) = tables_of(place)
    for row in table["rows"]:
        made = []
        for command in row["commands"]:
            words = shlex.split(command)[2:]
            assert words[-1] == "data-dir=DIR"
            for combination in grid._combinations(grid.read(words[:-1])):
                typed = [words[0], *(f"{key}={value}" for key, value in combination.items())]
                config = resolve(parse_arguments(typed)[0]).model_dump(mode="json")
                made.append(json.dumps(config["allocation"] | {"seed": config["seed"], "method": config["method"]}))
        kept = [
            json.dumps(config["allocation"] | {"seed": config["seed"], "method": config["method"]})
            for name, _, _ in row["files"] if (config := runs[name].resolved.model_dump(mode="json"))
        ]  # fmt: skip
        assert sorted(made) == sorted(kept) and len(made) == 4 * len(row["seeds"].split())


def test_a_changed_setting_is_in_the_command_or_there_is_none(make_run: MakeRun) -> None:
    runs = [make_run("i2pfl", s, two(50, 40), given=f"{TWO} train.lr=0.00001 method.tau=0.5") for s in range(2)]
    (table,) = tables_of(*runs)
    (command,) = table["rows"][0]["commands"]
    assert {"train.lr=1.0e-05", "method.tau=0.5", "method=i2pfl", "seed=0,1"} <= {*shlex.split(command)}
    other = runs[0] / "config.yaml"
    other.write_text(other.read_text().replace("experiment: handwritten", "experiment: mine"))
    (row,) = tables_of(runs[0])[0]["rows"]
    assert row["commands"] == [f"fedshift run {shlex.quote(str(other))}"]


def test_models_that_were_scored_again_have_no_command_that_trains() -> None:
    """What trained them is not known: kept files of ``rescore`` have the settings of the score."""
    tables = tables_of(RESULTS / "digits-corrupted-bn", RESULTS / "digits-corrupted-fedbn")
    rows = [row for table in tables for row in table["rows"]]
    assert len(rows) > 20 and not any(row["commands"] for row in rows)
    said = {row["scored again"].partition(": ") for row in rows}
    assert {before for before, _, _ in said} == {"models of finished runs, scored again by fedshift rescore"}
    shift = "shift.name=corruption shift.corruption=random shift.severity="
    keys = {key for _, _, key in said}
    assert {f"adapt.name=none {shift}{severity}" for severity in (1, 3, 5)} <= keys
    assert any(key.startswith("adapt.name=tent adapt.") and f" {shift}5" in key for key in keys)


def test_runs_that_were_scored_again_are_told_from_those_that_were_trained(make_run: MakeRun) -> None:
    validated = f"{TWO} allocation.validation_fraction=0.2"
    again = {"scored_again": {"run": "trained", "round": 3}}
    runs = [
        make_run("fedavg", 0, two(50, 40), given=f"{validated} keep=best-validation", recorded=again),
        make_run("fedavg", 1, two(50, 40), given=f"{validated} keep=best-validation", recorded=again),
    ]
    ((row,),) = [table["rows"] for table in tables_of(*runs)]
    said = "models of finished runs after the round that they kept, scored again by fedshift rescore: adapt.name=none"
    assert (row["commands"], row["scored again"]) == ([], said)
    runs = [
        make_run("i2pfl", 0, two(50, 40), given=validated),
        make_run("i2pfl", 1, two(50, 40), given=validated, recorded=again),
    ]
    ((row,),) = [table["rows"] for table in tables_of(*runs)]
    (command,) = row["commands"]
    assert "seed=0" in shlex.split(command)
    assert row["scored again"].startswith("1 of the runs: models of finished runs, scored again")


def test_a_kept_round_is_in_the_command(make_run: MakeRun) -> None:
    """Runs that keep another model may share a row of the last rounds, but not a command."""
    validated = f"{TWO} allocation.validation_fraction=0.2"
    kept = [make_run("fedavg", seed, two(50, 40), given=f"{validated} keep=best-validation") for seed in range(2)]
    ((row,),) = [table["rows"] for table in tables_of(*kept)]
    (command,) = row["commands"]
    assert {"keep=best-validation", "seed=0,1"} <= {*shlex.split(command)} and row["scored again"] == ""
    ((row,),) = [table["rows"] for table in tables_of(*kept, make_run("fedavg", 2, two(50, 40), given=validated))]
    assert [("keep=best-validation" in words, words[-1]) for words in map(shlex.split, row["commands"])] == [
        (True, "seed=0,1"), (False, "seed=2"),
    ]  # fmt: skip


# --- Which runs stand in one table ---


def test_a_board_opens_on_what_was_scored_held_out_too_and_counts_bytes() -> None:
    folders = [RESULTS / name for name in ("pacs-cnn3", "pacs-pretrained-out", "pacs-pretrained")]
    made = board.board(folders)
    data = board_page.content(made, None, lambda _: "")
    assert data["first"] == ["pacs", "timm:tf_efficientnet_lite0", "averaged"]
    (row,) = [row for table in data["tables"] for row in table["rows"] if row["row"] == "fedavg" and table["split"] ==
              "in-domain" and table["network"] == data["first"][1]]  # fmt: skip
    kept = [json.loads(file.read_text()) for file in (RESULTS / "pacs-pretrained").glob("*-fedavg-*.json")]
    assert row["MB a round"] == pytest.approx(np.mean([(run["bytes_up"] + run["bytes_down"]) / 1e8 for run in kept]))


def test_budgets_stand_apart_and_say_what_they_are(make_run: MakeRun) -> None:
    for method in ("fedavg", "fedprox"):
        make_run(method, 0, two(50, 40), recorded={"arithmetic": "float32/nchw"})
        make_run(method, 0, two(60, 50), flat={"rounds": 7})
        runs = make_run(method, 0, two(61, 50), flat={"rounds": 7}, given=f"{TWO} train.lr=0.5").parent
    tables = tables_of(runs)
    assert [len(table["rows"]) for table in tables] == [2, 2, 2]
    assert len({table["name"] for table in tables}) == 2
    budget = dict(tables[0]["budget"])
    assert budget["arithmetic"] == "float32/nchw" and budget["pretrained weights"] == "none: from scratch"
    assert budget["training"] == "20 rounds x 5 epochs" and budget["image size"].endswith(" pixels")
    assert tables[2]["differs"].startswith("train.lr=0.5") and "train.lr=0.01" in tables[1]["differs"]


def test_a_command_names_runs_where_their_folder_holds_those_of_other_tables(make_run: MakeRun) -> None:
    for method in ("fedavg", "fedprox"):
        alone = make_run(method, 0, two(50, 40), under="alone").parent
    make_run("i2pfl", 0, two(45, 40), under="mixed")
    mixed = make_run("fedavg", 0, two(60, 50), flat={"rounds": 7}, under="mixed").parent
    tables = tables_of(mixed.parent)
    assert {len(table["rows"]) for table in tables} == {3, 1}
    for table in tables:
        words = shlex.split(table["command"])
        assert (str(alone) in words, str(mixed) in words) == (len(table["rows"]) == 3, False)
        done = CliRunner().invoke(cli.app, [*words[1:], "--json"])
        assert {row["row"] for row in json.loads(done.stdout)["rows"]} == {row["row"] for row in table["rows"]}


def test_a_seed_that_comes_twice_stands_apart_by_arithmetic_then_by_folder_or_is_left_out(make_run: MakeRun) -> None:
    root = make_run("fedavg", 0, two(50, 40), recorded={"arithmetic": "bf16/nchw"}, under="a").parent.parent
    make_run("fedavg", 0, two(51, 40), recorded={"arithmetic": "float32/nchw"}, under="a")
    made = board.board([root])
    assert len(made.tables) == 2 and made.left_out == ()
    make_run("fedavg", 0, two(52, 40), recorded={"arithmetic": "bf16/nchw"}, under="b")
    tables = tables_of(root)
    assert [dict(t["budget"])["arithmetic"] for t in tables] == ["bf16/nchw", "bf16/nchw", "float32/nchw"]
    assert [t["differs"] for t in tables] == [f"runs of {root / 'a'}", f"runs of {root / 'b'}", ""]
    make_run("fedavg", 0, two(53, 40), recorded={"arithmetic": "bf16/nchw"}, under="b")
    made = board.board([root])
    assert len(made.tables) == 2 and "seed 0 comes twice, with different numbers" in made.left_out[0]
    assert made.left_out[0] in html.unescape(board_page.page(made))
    with pytest.raises(ConfigError, match="comes twice"):
        board.board([root / "b"])


def test_runs_of_a_folder_and_of_its_sweeps_are_read(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("fedavg", 0, two(50, 40))
    make_run("fedbn", 0, two(52, 40), under="runs/sweep-x")
    (table,) = tables_of(tmp_path / "runs")
    assert [(row["method"], row["scored"], row["baseline"]) for row in table["rows"]] == [
        ("fedavg", "global", True), ("fedbn", "personal", False),
    ]  # fmt: skip
    assert table["rows"][1]["difference"] == pytest.approx(1.0)


def test_a_site_called_like_a_column_keeps_its_own_numbers(make_run: MakeRun, tmp_path: Path) -> None:
    sites = {"p": 10.0, "n": 20.0, "method": 30.0, "p std": 40.0, "network": 50.0}
    runs = [
        make_run(method, seed, {site: value + seed * (1 + gain) for site, value in sites.items()}, given="")
        for gain, method in enumerate(("fedavg", "fedprox"))
        for seed in range(3)
    ]
    own = {"site p": 11.0, "site n": 21.0, "site method": 31.0, "p std": 41.0, "site network": 51.0}
    compared = compare(runs)
    base, other = json.loads(compared.json())["rows"]
    (head, first, second) = csv.reader(io.StringIO(compared.csv()))
    assert len(head) == len({*head})
    for row in (base, dict(zip(head, first, strict=True))):
        assert {name: float(row[name]) for name in own} == own and row["method"] == "fedavg"
    result = compared.numbers.rows[1].difference
    assert result is not None and other["p"] == result.p and dict(zip(head, second, strict=True))["p"] == str(result.p)
    printed = compared.text(width=10_000).splitlines()[2].split("  ")
    assert [name for name in map(str.strip, printed) if name in ("site p", "p", "n", "site n")] == [
        "n", "site p", "site n", "p",
    ]  # fmt: skip
    (table,) = tables_of(*runs)
    assert table["columns"] == [*own, "AVG", "STD", "WORST"] and len(table["head"]) == len({*table["head"]})
    assert [row["method"] for row in table["rows"]] == ["fedavg", "fedprox"]
    assert {column: table["rows"][0]["by_seed"]["1"][column] for column in own} == own


# --- The page ---


HOSTILE = "</script><img src=x onerror=alert(1)>&\u2028"


def test_names_of_others_cannot_leave_the_data(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("fedavg", 0, {HOSTILE: 50.0, "b": 40.0}, name="odd #1 &<b>'", given="")]
    runs += [make_run("i2pfl", 0, {HOSTILE: 51.0, "b": 40.0}, given="", recorded={"git": "<i>"})]
    place = tmp_path / "pages" / "board.html"
    page = board_page.page(board.board(runs), place)
    assert page.count("<script") == page.count("</script>") == 2 and "<img" not in page and "\u2028" not in page
    (table,) = data_of(page)["tables"]
    assert table["columns"][0] == HOSTILE
    files = [row["files"] for row in table["rows"]]
    assert files[0] == [["odd #1 &<b>'", 0, "../runs/odd%20%231%20%26%3Cb%3E%27"]]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.findall(page)[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=\"?https?:", page) and "innerHTML" not in page
    without = data_of(board_page.page(board.board(runs)))["tables"][0]["rows"]
    assert [row["files"][0][2] for row in without] == ["", ""]  # nobody knows from where


@settings(max_examples=30)
@given(st.recursive(st.text() | st.none() | st.floats(allow_nan=False, allow_infinity=False), st.lists))
def test_embedded_data_is_what_it_was_and_ends_no_element(data: Any) -> None:
    text = board_page.embedded(data)
    assert json.loads(text) == data and not set(text) & {*"<>&\u2028\u2029"}


def test_the_command_and_python_write_the_same_page(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(m, s, two(50 + s, 40)) for m in ("fedavg", "fedprox") for s in range(3)]
    file = tmp_path / "board.html"
    done = CliRunner().invoke(cli.app, ["compare", "--board", str(file), str(runs[0].parent)])
    assert done.exit_code == 0, done.output
    assert "6 runs in 1 table of 2 rows" in done.output
    written = file.read_text(encoding="utf-8")
    assert compare(runs).to_board(file) == file and file.read_text(encoding="utf-8") == written
    (runs[0] / "results.json").write_text("{}")
    done = CliRunner().invoke(cli.app, ["compare", "--board", str(file), str(runs[0].parent)])
    assert done.exit_code == 1 and "left out, cannot be read" in html.unescape(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "option", [["--json"], ["--score", "final"], ["--unseen"], ["--sites", "auroc"], ["--html", "x"]]
)
def test_what_the_page_has_not_is_refused(make_run: MakeRun, tmp_path: Path, option: list[str]) -> None:
    run = make_run("fedavg", 0, two(50, 40))
    done = CliRunner().invoke(cli.app, ["compare", "--board", str(tmp_path / "b.html"), str(run), *option])
    assert isinstance(done.exception, ConfigError) and str(done.exception).startswith(f"--board and {option[0]}: ")


#: What the script needs of a browser: elements that keep what is put into them.
ELEMENTS = """
class Element {
  constructor(name) { Object.assign(this, {name, inner: [], attributes: {}, dataset: {}}); }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  append(...more) { this.inner.push(...more); }
  replaceChildren(...more) { this.inner = more; }
  addEventListener() {}
  *all() { for (const one of this.inner) if (one instanceof Element) { yield one; yield* one.all(); } }
}
const known = {}, files = require("fs"), [, , page, hash] = process.argv;
const html = files.readFileSync(page, "utf8");
globalThis.document = {
  getElementById: (id) => (known[id] ??= new Element(id)), createElement: (name) => new Element(name),
  createElementNS: (_, name) => new Element(name), querySelectorAll: () => [], documentElement: new Element("html"),
};
globalThis.location = {hash};
globalThis.history = {replaceState() {}};
globalThis.window = {addEventListener() {}};
globalThis.matchMedia = () => ({matches: false, addEventListener() {}});
document.getElementById("data").textContent = html.match(/id="data">(.*?)<\\/script>/s)[1];
(0, eval)(html.match(/<script>(.*?)<\\/script>/s)[1]);
const lines = {};
for (const row of known.tables.all()) {
  const inner = row.name === "tr" ? [...row.all()] : [];
  const open = inner.find((one) => (one.attributes["aria-label"] ?? "").startsWith("open "));
  if (open) lines[open.attributes["aria-label"].slice(5)] =
    inner.filter((one) => one.attributes.class === "zero").map((one) => Number(one.attributes.x1));
}
console.log(JSON.stringify(lines));
"""


def test_the_dashed_line_is_the_baseline_of_the_difference_whatever_the_order(
    make_run: MakeRun, tmp_path: Path
) -> None:
    """Two rows of FedAvg, each the baseline of a row that is stepped like it; another order moves no line."""
    given = {"fedavg": 50.0, "fedprox": 52.0}
    plain = [make_run(method, 0, two(scan, 40)) for method, scan in given.items()]
    stepped = [
        make_run(method, 0, two(scan + 20, 40), given=f"{TWO} server.optimizer=fedadam")
        for method, scan in given.items()
    ]
    file = compare([*plain, *stepped]).to_board(tmp_path / "board.html")
    ((table,),) = [data_of(file.read_text(encoding="utf-8"))["tables"]]
    rows = table["rows"]
    bases = {row["row"]: rows[row["base"]]["row"] for row in rows}
    adam, none = "fedavg server.optimizer=fedadam", "fedavg server.optimizer=none"
    assert bases == {
        adam: adam, none: adam,
        "fedprox server.optimizer=fedadam": adam, "fedprox server.optimizer=none": none,
    }  # fmt: skip
    for row in rows:
        own = row["AVG"] - rows[row["base"]]["AVG"]
        assert row.get("difference", 0.0) == pytest.approx(own)
    if (node := shutil.which("node")) is None:
        pytest.skip("no node")
    script = tmp_path / "elements.js"
    script.write_text(ELEMENTS)

    def lines(view: str) -> dict[str, list[float]]:
        done = subprocess.run([node, script, file, f"#{view}"], capture_output=True, text=True, check=True, timeout=60)
        drawn: dict[str, list[float]] = json.loads(done.stdout)
        return drawn

    first = lines("sort=AVG&dir=ascending")
    # AVG from 45 to 56 on a line from 6 to 122: 45 is its start, 55 is 10 of 11 further.
    places = {none: pytest.approx(6), adam: pytest.approx(6 + 116 * 10 / 11)}
    assert first == {name: [places[base]] for name, base in bases.items()}
    assert lines("sort=AVG&dir=descending") == first == lines("sort=p&dir=ascending")


def test_the_script_sorts_and_filters_in_a_browser(make_run: MakeRun, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium or google-chrome")
    accuracy = {"fedavg": 50, "fedprox": 52, "i2pfl": 48, "fedbn": 70}
    runs = [make_run(method, 0, two(scan, 100 - scan)) for method, scan in accuracy.items()]
    file = compare(runs).to_board(tmp_path / "board.html")

    def shown(view: str) -> list[str]:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"{file.as_uri()}#{view}"]
        dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        return re.findall(r'<tr(?: class="base")?><td><span>(\w+)', dom.partition("</form>")[2])

    assert shown("sort=scan&dir=ascending") == ["i2pfl", "fedavg", "fedprox"]
    assert shown("models=personal&sort=street&dir=descending") == ["fedavg", "fedbn"]
