"""Three SuperNodes on loopback, one of which its owner switches off in the middle of a run."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from own_sites import make
from support import ROOT, Run

from fedshift.run.launch import local_superlink, processes, runner
from fedshift.site import log
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving
from fedshift_app.node import state_folder
from fedshift_app.node.chained_log import LOG_FILE
from fedshift_datasets.io import cache

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROUNDS = 8
SMALL = "model.name=cnn_bn dataset.size=32 train.precision=float32"
#: `init` proposes keep=best-validation; a tenth of a site is 4 images, and the strict policy lets out 5 and more.
VALIDATED = "allocation.validation_fraction=0.2"
PATIENCE = 240.0  # seconds until the node has sent what it trained


def test_the_owner_of_a_node_stops_it_and_the_run_goes_on(tmp_path: Path) -> None:
    images = make(tmp_path / "images", 45)
    (images / "north" / "disc" / "broken.png").unlink()
    own = {cache.CACHE_DIR: str(tmp_path / "cache"), state_folder.STATE_DIR: str(tmp_path / "state")}
    environment = local_superlink.environment(tmp_path) | own | {"PYTHONPATH": str(ROOT)}

    def fedshift(*words: str, code: int = 0) -> str:
        """Run a command as a user does; return what it printed."""
        ended = subprocess.run(
            [sys.executable, "-m", "fedshift", *words], cwd=tmp_path, text=True, capture_output=True, check=False,
            env=os.environ | own | {"PYTHONPATH": str(ROOT)}, timeout=180,
        )  # fmt: skip
        assert ended.returncode == code, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        return ended.stdout + (ended.stderr if code else "")

    fedshift("init", "shapes", "data-dir=images")
    file = tmp_path / "shapes" / "shapes.yaml"
    file.write_text(file.read_text().replace(f'data_dir: "{images}"', 'data_dir: ""'))
    sites = resolving.resolve({"experiment": str(file)}).dataset.domains
    runs: list[Path] = []
    with processes.group(local_superlink.empty_folder(tmp_path), environment) as flower:
        link = local_superlink.SuperLink(processes.free_port())
        local_superlink.start_superlink(flower, link)
        local_superlink.connect(tmp_path, link)
        options = ["--insecure", "--superlink", link.address, "--keep-model", "--node-config"]
        command = {
            site: [*options, f"{exporting.NodeFolder(images, site, index).node_config} threads=1"]
            for index, site in enumerate(sites)
        }
        for index, site in enumerate(sites):
            flower.start(f"node-{index}", [sys.executable, "-m", "fedshift", "supernode", *command[site]])
        flat = {"experiment": str(file), "rounds": ROUNDS, "method": "fedbn", "output-dir": str(tmp_path / "runs"),
                "set": f"{SMALL} {VALIDATED} federation.min_nodes=2 federation.node_timeout=20"}  # fmt: skip
        thread = threading.Thread(target=lambda: runs.append(runner.submit(flower, tmp_path, flat, [])))
        thread.start()
        written = tmp_path / "state" / "node-0" / LOG_FILE
        deadline = time.monotonic() + PATIENCE
        while not (written.exists() and '"round": 2, "message": "train"' in written.read_text()):
            assert time.monotonic() < deadline and thread.is_alive()
            time.sleep(0.1)
        said = fedshift("site", "stop", "node-0")
        assert "node-0 is switched off: its SuperNode (process " in said
        assert "has ended, and what it worked on is dropped" in said
        stopped = written.read_bytes()
        assert "has switched it off" in fedshift("supernode", *command[sites[0]], code=1)
        thread.join()
        status = fedshift("site", "status")
    (run,) = map(Run, runs)
    assert run.results["rounds"] == ROUNDS
    last = run.rounds[-1]["accuracy"]
    assert last[sites[0]] is None
    assert None not in (last[sites[1]], last[sites[2]])
    assert "switched off" in status.splitlines()[2]
    assert written.read_bytes() == stopped  # nothing left it any more
    for index, site in enumerate(sites):
        checked = log.read(tmp_path / "state" / f"node-{index}")
        assert (checked.problems, checked.interrupted) == ([], 0)
        assert len(log.runs(checked)) == 1
        rounds = {sent.round for sent in checked.sent if sent.message == "train"}
        assert rounds == set(range(1, ROUNDS + 1)) if site != sites[0] else max(rounds) < ROUNDS
    # The page of another node has the accuracy that the node sent last, with its own BatchNorm.
    fedshift("site", "report", "node-1")
    matrix = json.loads((tmp_path / "state" / "node-1" / "report.json").read_text())["confusion"]
    right = sum(row[k] for k, row in enumerate(matrix))
    assert 100 * right / sum(map(sum, matrix)) == pytest.approx(last[sites[1]])
    said = fedshift("site", "stop", "node-1", "--forget")
    assert "deleted: " in said
    left = {path.name for path in (tmp_path / "state" / "node-1").iterdir()}
    assert left == {".out.lock", "out.jsonl", "out.head.json", "off.json", "supernode.json"}
    assert not [path for path in (tmp_path / "cache").glob(f"*-{sites[1]}-*") if path.is_dir()]
    assert (images / sites[1]).is_dir()
