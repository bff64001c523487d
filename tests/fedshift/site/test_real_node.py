"""Three SuperNodes on loopback, one of which its owner switches off in the middle of a run."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from real_federation import federation
from support import ROOT, Run, until

from fedshift.site import log
from fedshift_app.node.chained_log import LOG_FILE
from fedshift_core.env import KEEP_MODEL

ROUNDS = 8
DOMAINS = ("scan", "texture", "sketch")
IMAGES = f"dataset.domains=[{','.join(DOMAINS)}] allocation.share=0.2 model.name=cnn_bn train.precision=float32"


@pytest.mark.slow
@pytest.mark.long
def test_the_owner_of_a_node_stops_it_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEEP_MODEL, "1")
    state = tmp_path / "state"
    with federation(tmp_path, nodes=3, images=IMAGES) as made:
        made.policy.write_text("least_images: 1\n")  # numbers leave as they are

        def fedshift(*words: str) -> str:
            """Run a command as a user does; return what it printed."""
            command = [sys.executable, "-m", "fedshift", *words]
            ended = subprocess.run(
                command, text=True, capture_output=True, check=False, env=os.environ | made.own, timeout=180
            )
            assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stdout + ended.stderr
            return ended.stdout + ended.stderr

        given = {"rounds": ROUNDS, "method": "fedbn", "set": f"{IMAGES} federation.min_nodes=2"}
        thread = threading.Thread(target=lambda: made.run(ROOT, **given))
        thread.start()
        written = state / "node-0" / LOG_FILE
        trained = '"round": 2, "message": "train"'
        assert until(lambda: written.exists() and trained in written.read_text(), 240)
        assert "node-0 is switched off: its SuperNode (process " in fedshift("site", "stop", "node-0")
        stopped = written.read_bytes()
        thread.join()
        assert "switched off" in fedshift("site", "status").splitlines()[2]
    (run,) = map(Run, (tmp_path / "runs").iterdir())
    last = run.rounds[-1]["accuracy"]
    assert run.results["rounds"] == ROUNDS and [last[domain] is None for domain in DOMAINS] == [True, False, False]
    assert written.read_bytes() == stopped  # nothing left it any more
    for index in range(3):
        checked = log.read(state / f"node-{index}")
        assert (checked.problems, checked.interrupted, len(log.runs(checked))) == ([], 0, 1)
        rounds = {sent.round for sent in checked.sent if sent.message == "train"}
        assert rounds == set(range(1, ROUNDS + 1)) if index else max(rounds) < ROUNDS
    # The page of another node has the accuracy that the node sent last, with its own BatchNorm.
    fedshift("site", "report", "node-1")
    matrix = json.loads((state / "node-1" / "report.json").read_text())["confusion"]
    right = sum(row[k] for k, row in enumerate(matrix))
    assert 100 * right / sum(map(sum, matrix)) == pytest.approx(last[DOMAINS[1]])
    assert "deleted: " in fedshift("site", "stop", "node-1", "--forget")
    left = {path.name for path in (state / "node-1").iterdir()}
    assert left == {".out.lock", "out.jsonl", "out.head.json", "off.json", "supernode.json"}
    assert not [path for path in (tmp_path / "cache").glob(f"*-{DOMAINS[1]}-*") if path.is_dir()]
