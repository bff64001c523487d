"""`fedshift compare --board`: its tables are those of `compare`, its commands make the runs, its page escapes names."""

import base64
import hashlib
import html
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from support import ROOT
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.tables.compare import board, board_page, compare
from fedshift_core.errors import ConfigError

pytestmark = pytest.mark.usefixtures("kept_runs_once")

MakeRun = Callable[..., Path]
RESULTS = ROOT / "docs" / "results"
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)
SCRIPT = re.compile(r"<script>(.*?)</script>", re.S)


def data_of(page: str) -> dict[str, Any]:
    """Return what a page holds, as its script reads it."""
    (text,) = DATA.findall(page)
    content: dict[str, Any] = json.loads(text)
    return content


def tables_of(*paths: Path) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = data_of(board_page.page(board.board(paths)))["tables"]
    return tables


def rows_of(*paths: Path) -> list[dict[str, Any]]:
    """Return the rows of the one table of a board."""
    (table,) = tables_of(*paths)
    rows: list[dict[str, Any]] = table["rows"]
    return rows


# --- The kept runs: rows and values are those of compare ---


@pytest.mark.parametrize(
    ("folders", "options", "split", "statistics"),
    [
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
    compared = compare(paths, **options)
    expected = json.loads(compared.json())
    assert {key: table[key] for key in ("title", "columns", "notes", "warnings")}.items() <= expected.items()
    assert len(table["rows"]) == len(expected["rows"]) > 1
    for row, other in zip(table["rows"], expected["rows"], strict=True):
        assert {key: row[key] for key in other} == other and row["cells"][-1] == f"{row['MB a round']:.2f}"
    # The command of the table prints it.
    done = CliRunner().invoke(cli.app, [*shlex.split(table["command"])[1:], "--json"])
    assert json.loads(done.stdout)["rows"] == expected["rows"]


def test_a_command_has_what_was_changed_and_a_run_of_ones_own_experiment_its_file(
    run: MakeRun, of_mine: MakeRun
) -> None:
    runs = [run("i2pfl", seed, given="train.lr=0.00001 method.tau=0.5") for seed in range(2)]
    (command,) = rows_of(*runs)[0]["commands"]
    assert {"train.lr=1.0e-05", "method.tau=0.5", "method=i2pfl", "seed=0,1"} <= {*shlex.split(command)}
    mine = of_mine("fedavg")
    assert rows_of(mine)[0]["commands"] == [f"fedshift run {shlex.quote(str(mine / 'config.yaml'))}"]


# --- Which runs stand in one table ---


def test_a_seed_that_comes_twice_stands_apart_by_arithmetic_then_by_folder_or_is_left_out(run: MakeRun) -> None:
    def recorded(scan: float, arithmetic: str, under: str) -> Path:
        return run("fedavg", 0, scan, recorded={"arithmetic": arithmetic}, under=under).parent.parent

    recorded(50, "bf16/nchw", "a")
    root = recorded(51, "float32/nchw", "a")
    assert len(board.board([root]).tables) == 2
    recorded(52, "bf16/nchw", "b")
    tables = tables_of(root)
    assert [dict(t["budget"])["arithmetic"] for t in tables] == ["bf16/nchw", "bf16/nchw", "float32/nchw"]
    assert [t["differs"] for t in tables] == [f"runs of {root / 'a'}", f"runs of {root / 'b'}", ""]
    recorded(53, "bf16/nchw", "b")
    made = board.board([root])
    assert len(made.tables) == 2 and "seed 0 comes twice" in made.left_out[0]
    assert made.left_out[0] in html.unescape(board_page.page(made))
    with refused(ConfigError, "comes twice"):
        board.board([root / "b"])


# --- The page ---


HOSTILE = "</script><img src=x onerror=alert(1)>&\u2028"


def test_names_of_others_cannot_leave_the_data(run: MakeRun, tmp_path: Path) -> None:
    domains = {HOSTILE: 50.0, "b": 40.0}
    runs = [run("fedavg", domains=domains, name="odd #1 &<b>'"), run("i2pfl", domains=domains, recorded={"git": "<i>"})]
    page = board_page.page(board.board(runs), tmp_path / "pages" / "board.html")
    assert page.count("<script") == page.count("</script>") == 2 and "<img" not in page and "\u2028" not in page
    (table,) = data_of(page)["tables"]
    assert table["columns"][0] == HOSTILE
    assert table["rows"][0]["files"] == [["odd #1 &<b>'", 0, "../runs/odd%20%231%20%26%3Cb%3E%27"]]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.findall(page)[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=\"?https?:", page) and "innerHTML" not in page
    assert [row["files"][0][2] for row in rows_of(*runs)] == ["", ""]  # nobody knows from where


@settings(max_examples=30)
@given(st.recursive(st.text() | st.none() | st.floats(allow_nan=False, allow_infinity=False), st.lists, max_leaves=20))
def test_embedded_data_is_what_it_was_and_ends_no_element(data: Any) -> None:
    text = board_page.embedded(data)
    assert json.loads(text) == data and not set(text) & {*"<>&\u2028\u2029"}
