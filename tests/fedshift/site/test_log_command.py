"""``fedshift site log`` and ``status``: what left by run, and whether the log is whole."""

import json
from pathlib import Path
from typing import Any

import pytest
from real_node import charge
from typer.testing import CliRunner, Result

from fedshift import cli
from fedshift.site import commands, nodes
from fedshift_app.node import chained_log, ledger, state_folder
from fedshift_app.node.chained_log import LOG_FILE
from fedshift_core.errors import ConfigError

RUNS = ("a" * 32, "b" * 32)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    return tmp_path / "state"


def reply(run: str, number: int, message: str = "train", **more: Any) -> list[dict[str, Any]]:
    about = {"time": f"2026-11-26T01:00:0{number}.000Z", "run": run, "flower_run": "7" if run in ("", RUNS[0]) else "8",
             "round": number, "message": message, "to": "m", "images": 5}  # fmt: skip
    return [
        {**about, "kind": "reply", "items": 1, "bytes": 1000, **more},
        {**about, "kind": "array", "name": f"arrays/w{number}", "shape": [2, 3], "norm": 2.5, "bytes": 1000,
         "sha256": "c" * 64},
    ]  # fmt: skip


def write(folder: Path, *replies: list[dict[str, Any]]) -> None:
    for entries in replies:
        with chained_log.locked(folder):
            chained_log.append(folder, entries)


@pytest.fixture
def node(state: Path) -> Path:
    """Return a node with a log of two runs; the first message of a run does not say its id."""
    folder = state / "node-0"
    write(
        folder, reply("", 0, "query"), reply(RUNS[0], 1, epsilon=0.5, delta=1e-5),
        reply(RUNS[0], 2, epsilon=0.5, delta=1e-5), reply(RUNS[1], 1),
    )  # fmt: skip
    return folder


def call(*words: str) -> Result:
    return CliRunner().invoke(cli.app, ["site", *words])


def test_the_table_has_a_line_for_each_run_and_sums(node: Path) -> None:
    result = call("log")
    assert result.exit_code == 0, result.output
    head, _, *rows, verdict = result.stdout.splitlines()
    assert head.split() == ["run", "first", "last", "rounds", "replies", "items", "bytes", "epsilon", "delta"]
    cells = [row.split() for row in rows]
    assert [[row[0], *row[3:]] for row in cells] == [
        [RUNS[0], "2", "3", "3", "3,000", "1", "2e-05"], [RUNS[1], "1", "1", "1", "1,000", "-", "-"],
        ["all", "2", "4", "4", "4,000", "1", "2e-05"],
    ]  # fmt: skip
    assert "8 lines; none is missing or changed" in verdict


def test_a_run_is_shown_by_reply_and_a_round_by_item(node: Path) -> None:
    lines = call("log", "node-0", "--run", "aaa").stdout.splitlines()
    assert [line.split()[1:3] for line in lines[2:5]] == [["0", "query"], ["1", "train"], ["2", "train"]]
    shown = call("log", "--run", "a", "--round", "2").stdout
    assert "arrays/w2" in shown and "2 x 3" in shown and "2.5" in shown
    assert "arrays/w1" not in shown
    assert "nothing left in round 9" in call("log", "--run", "a", "--round", "9").stdout
    assert "arrays/w1" in call("log", "--run", "b", "--round", "1").stdout


def test_json_has_all_of_it(node: Path) -> None:
    content = json.loads(call("log", "--json").stdout)
    assert (content["lines"], content["problems"], content["interrupted"]) == (8, [], 0)
    assert content["head"]["lines"] == 8
    assert [run["run"] for run in content["runs"]] == list(RUNS)
    assert content["all"]["bytes"] == sum(run["bytes"] for run in content["runs"]) == 4000
    assert content["runs"][0]["epsilon"] == 1.0


def test_a_log_that_was_changed_is_an_error_of_one_line_each(node: Path) -> None:
    lines = (node / LOG_FILE).read_bytes().splitlines(keepends=True)
    (node / LOG_FILE).write_bytes(b"".join(lines[:3] + lines[4:-1]))
    for words in (("log",), ("log", "--json"), ("log", "--run", "a")):
        result = call(*words)
        assert result.exit_code == 1
        errors = [line for line in result.stderr.splitlines() if line]
        assert all(line.startswith("error: ") for line in errors)
        assert "line 4 says that it is line 5" in result.stderr
        assert "found are 6" in result.stderr
    assert "not as it was written" in call("log").stdout


def test_many_problems_are_counted(node: Path) -> None:
    write(node, *(reply(RUNS[1], 1) for _ in range(20)))
    (node / LOG_FILE).write_bytes(b"no json\n" * 48)
    result = call("log")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 21
    assert result.stderr.splitlines()[-1] == "error: 29 more"


def test_what_a_stranger_wrote_into_a_line_is_not_printed_as_it_is(node: Path) -> None:
    write(node, reply("\x1b[31mred", 1, "tra\nin"))
    shown = call("log").stdout + call("log", "--run", "\x1b").stdout
    assert "\x1b" not in shown and "\\x1b[31mred" in shown


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["log", "--round", "1"], "--round: give --run"),
        (["log", "--run", "z"], "--run: 'z' begins the id of 0 runs"),
        (["log", "other"], "NODE: 'other' is no node of this machine; there are node-0, node-1"),
        (["log"], "NODE: several nodes are on this machine; name one of node-0, node-1"),
        (["log", "node-1"], "no log is here: "),
        (["stop", "node-0", "--undo", "--forget"], "--undo and --forget"),
    ],
)
def test_bad_input_is_named(words: list[str], reason: str, node: Path) -> None:
    if "--run" not in words:
        (node.parent / "node-1").mkdir()
    result = call(*words)
    assert isinstance(result.exception, ConfigError)
    assert reason in str(result.exception)


@pytest.mark.parametrize("removed", ["log", "head", "both", "emptied"])
def test_a_log_that_is_gone_is_said_to_be_gone(removed: str, node: Path) -> None:
    log, head = node / chained_log.LOG_FILE, node / chained_log.HEAD_FILE
    if removed == "emptied":
        log.write_bytes(b"")
    for path in {"log": [log], "head": [head], "both": [log, head]}.get(removed, []):
        path.unlink()
    shown = call("log")
    found = shown.output + str(shown.exception)
    assert {"log": "is missing", "head": "is missing", "both": "no log is here", "emptied": "lines are missing"}[
        removed
    ] in found
    row = next(line for line in call("status").stdout.splitlines() if line.startswith(node.name))
    assert {"both": " - ", "head": "unknown"}.get(removed, "lost") in row
    where = call("stop", node.name, "--json").stdout + call("stop", node.name).stdout
    assert ("no log is here" in where) is (removed in ("log", "both"))


def test_no_node_has_worked_here(state: Path) -> None:
    result = call("log")
    assert "no node has worked on this machine" in str(result.exception)
    assert "no node has worked on this machine" in call("status").stdout
    assert not state.exists()  # a look makes nothing


def test_a_ledger_is_no_node(node: Path, state: Path) -> None:
    charge(ledger.of_images(state / "images"), "run")
    assert nodes.names() == [node.name] and nodes.named("").folder == node


def test_the_state_of_each_node(node: Path) -> None:
    nodes.note_start({"domain": "scan", "data-dir": "/data", "partition-id": 0})
    nodes.note_start({"domain": "sketch", "data-dir": "/data", "partition-id": 1})
    chained_log.switch_off(state_folder.state_dir() / "node-2")
    rows = {line.split()[0]: line for line in call("status").stdout.splitlines()[2:]}
    assert " scan  " in rows["node-0"] and " runs  " in rows["node-0"] and "  8  " in rows["node-0"]
    assert " runs  " in rows["node-1"]
    assert "switched off" in rows["node-2"]
    content = json.loads(call("status", "--json").stdout)
    assert [(one["node"], one["domain"], one["lines"]) for one in content] == [
        ("node-0", "scan", 8), ("node-1", "sketch", None), ("node-2", "", None),
    ]  # fmt: skip
    assert commands._nodes("node-") == ["node-0", "node-1", "node-2"]
