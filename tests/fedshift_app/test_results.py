"""docs/results: each table is what the command above it prints from the committed runs."""

import json
import re
import shlex
from pathlib import Path

import pytest
from support import ROOT, load_benchmark
from typer.testing import CliRunner

from fedshift import cli

pytestmark = pytest.mark.usefixtures("kept_runs_once")

SCRIPT = load_benchmark("results_page")
PAGES = {page.name: page.read_text(encoding="utf-8") for page in SCRIPT.pages()}
KEPT = sorted((ROOT / "docs" / "results").glob("*/*.json"))
#: Commands as the pages print them, each with the table below it.
SHOWN = [shown for page in PAGES.values() for shown in SCRIPT.SHOWN.findall(page)]
#: What a command printed, from its table on a page.
UNFOLDED = re.compile(r"<details[^\n]*\n\n((?:- [^\n]*\n)+)\n</details>\n*$")


def unfolded(table: str) -> str:
    """Return a page's table as its command prints it."""
    return UNFOLDED.sub(r"\1", table).strip()


@pytest.mark.parametrize(("command", "below"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_table_is_what_its_command_prints(command: str, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    printed = CliRunner().invoke(cli.app, shlex.split(command))
    assert printed.exit_code == 0, printed.output
    assert "Warning" not in printed.stdout
    assert printed.stdout.strip() == unfolded(below) != "", f"run: python benchmarks/results_page.py ({command})"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_without_its_tables_gets_them_and_keeps_its_text(name: str) -> None:
    page = PAGES[name]
    run = {command: unfolded(below) for command, below in SHOWN}.__getitem__
    bare = SCRIPT.SHOWN.sub(lambda shown: f"    fedshift {shown[1]}\n\n", page)
    assert not any(below in bare for _, below in SHOWN)
    assert SCRIPT.refreshed(bare, run) == SCRIPT.refreshed(page, run) == page


@pytest.mark.parametrize("page", SCRIPT.method_pages(), ids=lambda page: page.stem)
def test_a_page_of_a_method_repeats_its_row(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert SCRIPT.repeated(page.stem, text, PAGES["digits-cnn.md"]) == text, "run: python benchmarks/results_page.py"


def test_a_row_by_hand() -> None:
    results = (
        "| fedavg | global | 3 | 1 | 93.05 ± 0.20 | 6 | 86 |  |  |  |\n"
        "| ga | global | 3 | 1 | **92.91 ± 0.23** | 5 | 86 | -0.14 ± 0.29 | 0.475 | 1.000 |\n"
    )
    begin, end = "Three seeds on real digits (`digits-small-cnn`, 40 rounds): ", "[results](../results/digits-cnn.md)"
    assert SCRIPT.repeated("ga", f"{begin}old: {end}, more", results) == (
        f"{begin}92.91 ± 0.23, FedAvg 93.05 ± 0.20, difference -0.14 ± 0.29 (p = 0.475, by Holm 1.000): {end}, more"
    )
    with pytest.raises(SystemExit, match="has 0 rows"):
        SCRIPT.repeated("moon", f"{begin}: {end}", results)


def test_every_committed_run_is_in_a_table() -> None:
    """Of all together, ``claims docs/results/``, that holds anyhow."""
    compared = [command for command, _ in SHOWN if command.startswith("compare ")]
    folders = {
        word.removeprefix("docs/results/")
        for command in compared
        for word in command.split()
        if "/" in word and not word.endswith(".json")
    }
    assert folders == {file.parent.name for file in KEPT} != set()


def test_every_page_of_results_is_in_the_index() -> None:
    index = (ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8")
    assert all(f"]({name})" in index for name in PAGES)


def test_a_committed_run_tells_its_state_of_the_source_and_no_path() -> None:
    wrong = []
    for file in KEPT:
        text = file.read_text(encoding="utf-8")
        kept = json.loads(text)
        if not re.fullmatch("[0-9a-f]{12,40}", kept["config"]["git"]):
            wrong.append(f"{file}: no state of the source")
        if re.search(r'"/\w', text):
            wrong.append(f"{file}: a path")
        if kept["missing"] != []:
            wrong.append(f"{file}: misses {kept['missing']}")
    assert wrong == []
