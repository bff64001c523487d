"""``fedshift site log`` and ``status``: what left by run, and whether the log is whole."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from real_node import charge
from refusals import worded
from support import invoked
from typer.testing import Result

from fedshift.site import commands, nodes, status
from fedshift_app.features.privacy import epsilon_of
from fedshift_app.node import chained_log, ledger, state_folder
from fedshift_app.node.chained_log import HEAD_FILE, LOG_FILE
from fedshift_core.errors import ConfigError

RUNS = ("a" * 32, "b" * 32)


def write(folder: Path, run: str, number: int, message: str = "train", **more: Any) -> None:
    """Log a reply with an array."""
    about = {"run": run, "flower_run": "8" if run == RUNS[1] else "7", "round": number, "message": message}
    about |= {"time": f"2026-11-26T01:00:0{number}.000Z", "to": "m", "images": 5, "bytes": 1000}
    array = {"kind": "array", "name": f"arrays/w{number}", "shape": [2, 3], "norm": 2.5, "sha256": "c" * 64}
    with chained_log.locked(folder):
        chained_log.append(folder, [{**about, "kind": "reply", "items": 1, **more}, about | array])


@pytest.fixture
def node(state: Path) -> Path:
    """Return a node with a log of two runs; the first message of a run does not say its id."""
    folder = state / "node-0"
    write(folder, "", 0, "query")
    for number in (1, 2):
        write(folder, RUNS[0], number, epsilon=0.5, delta=1e-5)
    write(folder, RUNS[1], 1)
    return folder


def call(*words: str) -> Result:
    return invoked("site", *words)


def test_the_table_has_a_line_for_each_run_and_sums_and_json_all_of_it(node: Path) -> None:
    result = call("log")
    assert result.exit_code == 0, result.output
    head, _, *rows, verdict = result.stdout.splitlines()
    assert " ".join(head.split()) == "run first last rounds replies items bytes epsilon delta" and "8 lines" in verdict
    cells = [" ".join([row.split()[0], *row.split()[3:]]) for row in rows]
    wanted = f"{RUNS[0]} 2 3 3 3,000 1 2e-05", f"{RUNS[1]} 1 1 1 1,000 - -", "all 2 4 4 4,000 1 2e-05"
    assert cells == [*wanted]
    content = json.loads(call("log", "--json").stdout)
    assert (content["lines"], content["problems"], content["interrupted"], content["head"]["lines"]) == (8, [], 0, 8)
    assert [run["run"] for run in content["runs"]] == list(RUNS) and content["runs"][0]["epsilon"] == 1.0


def test_a_run_is_shown_by_reply_and_a_round_by_item(node: Path) -> None:
    lines = call("log", "node-0", "--run", "aaa").stdout.splitlines()
    assert [line.split()[1:3] for line in lines[2:5]] == [["0", "query"], ["1", "train"], ["2", "train"]]
    shown = call("log", "--run", "a", "--round", "2").stdout
    assert all(text in shown for text in ("arrays/w2", "2 x 3", "2.5")) and "arrays/w1" not in shown
    assert "round 9" in call("log", "--run", "a", "--round", "9").stdout
    assert "arrays/w1" in call("log", "--run", "b", "--round", "1").stdout
    write(node, "\x1b[31mred", 1, "tra\nin")  # what a stranger wrote is not printed as it is
    shown = call("log").stdout + call("log", "--run", "\x1b").stdout
    assert "\x1b" not in shown and "\\x1b[31mred" in shown


def test_a_log_that_was_changed_is_an_error_of_one_line_each(node: Path) -> None:
    lines = (node / LOG_FILE).read_bytes().splitlines(keepends=True)
    (node / LOG_FILE).write_bytes(b"".join(lines[:3] + lines[4:-1]))
    for words in (("log",), ("log", "--json"), ("log", "--run", "a")):
        result = call(*words)
        assert result.exit_code == 1 and all(line.startswith("error: ") for line in result.stderr.splitlines() if line)
        assert "line 4 says that it is line 5" in result.stderr and "found are 6" in result.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["log", "--round", "1"], ["--round", "--run"]), (["log", "--run", "z"], ["--run: 'z'"]),
        (["log", "other"], ["NODE: 'other'", "node-0, node-1"]), (["log"], ["NODE", "node-0, node-1"]),
        (["log", "node-1"], ["node-1"]), (["stop", "node-0", "--undo", "--forget"], ["--undo", "--forget"]),
    ],
)  # fmt: skip
def test_bad_input_is_named(words: Any, named: Any, node: Path) -> None:
    if "--run" not in words:
        (node.parent / "node-1").mkdir()
    result = call(*words)
    assert isinstance(result.exception, ConfigError)
    worded(str(result.exception), *named)


@pytest.mark.parametrize(
    ("removed", "said", "row"),
    [([LOG_FILE], "is missing", "lost"), ([HEAD_FILE], "is missing", "unknown"),
     ([LOG_FILE, HEAD_FILE], "no log is here", " - "), ([], "lines are missing", "lost")],
)  # fmt: skip
def test_a_log_that_is_gone_is_said_to_be_gone(removed: Any, said: str, row: str, node: Path) -> None:
    (node / LOG_FILE).write_bytes(b"" if not removed else (node / LOG_FILE).read_bytes())
    for name in removed:
        (node / name).unlink()
    shown = call("log")
    assert said in shown.output + str(shown.exception)
    assert row in next(line for line in call("status").stdout.splitlines() if line.startswith(node.name))
    assert ("no log is here" in call("stop", node.name).stdout) is (LOG_FILE in removed)


def test_the_state_of_each_node(state: Path) -> None:
    assert "none is there" in str(call("log").exception)
    assert "no node has worked on this machine" in call("status").stdout
    assert not state.exists()  # a look makes nothing
    charge(ledger.of_images(state / "images"), "run")  # a ledger is no node
    for number, domain in enumerate(("scan", "sketch")):
        nodes.note_start({"domain": domain, "data-dir": "/data", "partition-id": number})
    chained_log.switch_off(state / "node-2")
    write(state / "node-0", RUNS[0], 1)
    rows = {line.split()[0]: line for line in call("status").stdout.splitlines()[2:]}
    assert all(text in rows["node-0"] for text in (" scan  ", " runs  ", "  2  "))
    assert " runs  " in rows["node-1"] and "switched off" in rows["node-2"]
    assert commands._nodes("node-") == ["node-0", "node-1", "node-2"]  # for the shell's completion
    content = json.loads(call("status", "--json").stdout)
    assert [(one["domain"], one["lines"]) for one in content] == [("scan", 2), ("sketch", None), ("", None)]


# --- metrics, and a log that is moved -----------------------------------------------------------------------


def test_a_node_says_what_its_budget_leaves(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("budget: {epsilon: 4, delta: 1.0e-5}")
    (tmp_path / "policy.yaml").chmod(0o600)
    (tmp_path / "images").mkdir()
    about = {"domain": "scan", "data-dir": str(tmp_path / "images"), "policy": str(tmp_path / "policy.yaml")}
    nodes.note_start(about | {"partition-id": 0})
    nodes.note_start({"domain": "sketch", "data-dir": str(tmp_path), "partition-id": 1})
    own = ledger.of_images(tmp_path / "images")
    for run in ("a", "b"):
        charge(own, run * 32, 0.01)
    folder = state_folder.state_dir() / "node-0"
    with chained_log.locked(folder):
        chained_log.append(folder, [{"kind": "reply"}])
    chained_log.switch_off(folder)

    numbers = {(sample.name, sample.labels["node"]): sample.value for sample in status.samples(nodes.nodes())}
    spent = epsilon_of(math.sqrt(0.02), 1e-5)
    assert 0 < spent < 4 and numbers["node_epsilon", "node-0"] == pytest.approx(spent)
    assert numbers["node_epsilon_left", "node-0"] == pytest.approx(4 - spent)
    assert numbers["node_epsilon_left", "node-1"] is None  # of the strict policy, which has no budget
    assert (numbers["node_switched_off", "node-0"], numbers["node_switched_off", "node-1"]) == (1, 0)
    assert (numbers["node_runs", "node-0"], numbers["node_last_sent", "node-1"]) == (1, None)
    log = folder / chained_log.LOG_FILE
    assert (numbers["node_log_bytes", "node-0"], numbers["node_last_sent", "node-0"]) == (
        log.stat().st_size,
        log.stat().st_mtime,
    )
    text = invoked("site", "status", "--metrics").output
    assert f'fedshift_node_epsilon_left{{node="node-0"}} {numbers["node_epsilon_left", "node-0"]}\n' in text
    assert text.count("# TYPE fedshift_node_epsilon_left gauge") == 1 and 'left{node="node-1"}' not in text


def test_a_log_that_is_moved_with_its_head_stays_whole_and_another_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, kept = state_folder.state_dir() / "node-0", tmp_path / "logs-2026" / "node-0"
    kept.mkdir(parents=True)

    def send() -> None:
        with chained_log.locked(folder):
            chained_log.append(folder, [{"kind": "reply", "run": "a" * 32, "time": chained_log.stamp(0)}])

    send()
    (folder / chained_log.LOG_FILE).rename(kept / chained_log.LOG_FILE)
    with pytest.raises(chained_log.LogError, match=chained_log.HEAD_FILE):  # as logrotate would have it
        send()
    (folder / chained_log.HEAD_FILE).rename(kept / chained_log.HEAD_FILE)
    send()
    for place in (folder.parent, kept.parent):
        monkeypatch.setenv(state_folder.STATE_DIR, str(place))
        ended = invoked("site", "log", "--json")
        assert ended.exit_code == 0 and '"lines": 1' in ended.output, ended.output
