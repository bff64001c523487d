"""``fedshift site status --metrics``, and a log that is moved once a year: what a node's operator does."""

import math
from pathlib import Path

import pytest
from real_node import charge
from support import invoked

from fedshift.site import nodes, status
from fedshift_app.features.privacy import epsilon_of
from fedshift_app.node import chained_log, ledger, state_folder


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
