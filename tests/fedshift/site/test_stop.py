"""``fedshift site stop``: nothing leaves, the SuperNode ends and stays away, and what is deleted is the node's."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import own_sites
import psutil
import pytest
from real_federation import federation
from support import ROOT, Run, image_set, invoked, ran, until
from typer.testing import Result

from fedshift.run.launch import processes
from fedshift.site import log, nodes, stop
from fedshift.site.deploy import node_waits, supernode
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import make_context
from fedshift_app.node import chained_log, received_model, setup, state_folder
from fedshift_app.node import data as node_data
from fedshift_app.node.chained_log import LOG_FILE
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_datasets.io import cache, npz

#: A SuperNode in the role of Flower's: with a child of its own, and deaf to SIGTERM where it is told so.
STAND_IN = """
import signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def call(*words: str) -> Result:
    return invoked("site", "stop", *words)


@contextmanager
def started(monkeypatch: pytest.MonkeyPatch, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a node's process and its child."""
    process = subprocess.Popen([sys.executable, "-c", STAND_IN, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        named = f"{process.pid} {psutil.Process(process.pid).create_time()}"
        with monkeypatch.context() as patch:
            patch.setattr(processes, "this_process", lambda: named)
            nodes.note_start({"domain": "scan", "data-dir": "/data", "partition-id": 0})
        yield process, child
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("words", [(), ("deaf",)])
def test_a_supernode_ends_with_all_that_it_started(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "GRACE_SECONDS", 0.3 if words else 10.0)
    with started(monkeypatch, *words) as (process, child):
        assert nodes.named("").runs
        with pytest.raises(ConfigError, match="stop it first"):
            stop.forget(nodes.named(""))
        result = call()
        assert result.exit_code == 0, result.output
        assert f"(process {process.pid}) has ended" in result.stdout and "stop node-0 --undo" in result.stdout
        assert not nodes.named("").runs and chained_log.is_off(state_folder.state_dir() / "node-0")
        assert not psutil.pid_exists(child) or processes.has_ended(psutil.Process(child))
        process.wait()
        monkeypatch.setattr(processes, "is_running", lambda named: True)  # as it was a moment ago
        assert "no SuperNode" in call().stdout


def test_a_node_that_is_off_is_not_started_again_until_its_owner_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(node_waits, "run_supernode", lambda options, warm, key: given.append(options))
    options = ["--insecure", "--node-config", 'domain="scan" data-dir="/data/scan" partition-id=3']
    supernode.serve(options)
    node = nodes.named("")
    assert (node.name, node.config["data-dir"], node.runs) == ("node-3", "/data/scan", True)
    # a SuperNode that runs is this very process: only the switch is tried here
    chained_log.switch_off(node.folder)
    with pytest.raises(ConfigError, match=r"(?s)switched it off.*fedshift site stop node-3 --undo"):
        supernode.serve(options)
    assert "may be started again" in call("--undo").stdout and "was not switched off" in call("--undo").stdout
    supernode.serve(options)
    assert len(given) == 2


def images(folder: Path, domain: str) -> None:
    """Write a node's own images, and let them be decoded into the cache."""
    config = resolve({"dataset": "handwritten", "set": "dataset.domains=[scan,sketch]"})
    for split, number in (("train", 40), ("test", 20)):
        file = folder / f"{domain}_{split}.npz"
        npz.write(file, image_set(number, 16, 10, len(file.name)), config.dataset.known().classes)
    given = {"domain": domain, "data-dir": str(folder), "partition-id": 0 if domain == "scan" else 1}
    nodes.note_start(given)
    node_data.own_images(config, setup.place(config, make_context(0, given, {}), setup.DEPLOYMENT))


@pytest.mark.parametrize("others", [False, True])
def test_forget_deletes_what_is_the_nodes_and_says_what_stays(
    others: bool, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images(tmp_path / "data", "scan")
    if others:
        images(tmp_path / "data", "sketch")  # in the same folder
    folder = state / "node-0"
    with chained_log.locked(folder):
        chained_log.append(folder, [{"kind": "number", "bytes": 8}])
    (folder / "run-1").mkdir()
    for name in ("run-1/round-00001-0-0123456789abcdef.safetensors", received_model.FILE, "report.html"):
        (folder / name).write_bytes(b"private")
    monkeypatch.setattr(processes, "is_running", lambda named: False)
    (cache.cache_dir() / "site-0f.json").write_text('["anna.png"]')
    assert list(cache.cache_dir().glob("[!.]*-scan-*"))
    result = call("node-0", "--forget")
    assert result.exit_code == 0, result.output
    assert {path.name for path in folder.iterdir()} == set(stop.LOGS)
    assert not [*cache.cache_dir().glob("[!.]*-scan-*"), *cache.cache_dir().glob("site-*")]
    assert bool(list(cache.cache_dir().glob("[!.]*-sketch-*"))) is others
    assert (tmp_path / "data" / "scan_train.npz").is_file() and f"its images: {tmp_path / 'data'}" in result.stdout


@pytest.mark.parametrize("linked", ["data", "data/north"])
def test_forget_deletes_images_that_the_node_has_through_a_link(
    linked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_sites.write(tmp_path / "elsewhere", ("north",), 9)
    (tmp_path / linked).parent.mkdir(exist_ok=True)
    target = tmp_path / "elsewhere" / ("" if linked == "data" else "north")
    (tmp_path / linked).symlink_to(target, target_is_directory=True)
    nodes.note_start({"domain": "north", "data-dir": str(tmp_path / "data"), "partition-id": 0})
    catalog.load_own("folders", "north", "train", Source(tmp_path / "data", classes=own_sites.CLASSES), 16)
    assert list(cache.cache_dir().glob("folders-own-north-*"))
    monkeypatch.setattr(processes, "is_running", lambda named: False)
    assert stop.forget(nodes.named("")) == []
    assert not list(cache.cache_dir().glob("folders-own-north-*"))


def test_a_folder_beside_those_of_nodes_is_no_node(state: Path) -> None:
    """Such as Flower's, where ``FLWR_HOME`` lies within ``FEDSHIFT_STATE``: it is neither listed nor emptied."""
    own = state_folder.own_folder({"domain": "north, west", "data-dir": "/data"})
    assert own is not None
    for name in (own.name, "flwr", state_folder.LEDGERS, "node-x", "backup-20261128"):
        (state / name / "apps").mkdir(parents=True)
    assert nodes.names() == [own.name]
    assert nodes.named("").folder == own
    assert "'flwr' is none" in str(call("flwr", "--forget").exception)
    assert (state / "flwr" / "apps").is_dir()
    (state / "node-12").mkdir()
    assert nodes.names() == ["node-12", own.name]


# --- real processes -----------------------------------------------------------------------------------------


ROUNDS = 4
DOMAINS = ("scan", "texture", "sketch")
IMAGES = f"dataset.domains=[{','.join(DOMAINS)}] allocation.share=0.2 model.name=cnn_bn train.precision=float32"


@pytest.mark.slow
@pytest.mark.long
def test_the_owner_of_a_node_stops_it_and_the_run_goes_on(tmp_path: Path) -> None:
    with federation(tmp_path, nodes=3, images=IMAGES) as made:
        made.policy.write_text("least_images: 1\n")  # numbers leave as they are

        given = {"rounds": ROUNDS, "method": "fedbn", "set": f"{IMAGES} federation.min_nodes=2"}
        thread = threading.Thread(target=lambda: made.run(ROOT, **given))
        thread.start()
        written = tmp_path / "state" / "node-0" / LOG_FILE
        assert until(lambda: written.exists() and '"round": 2, "message": "train"' in written.read_text(), 240)
        said = ran("-m", "fedshift", "site", "stop", "node-0", check=True, env=made.own).stdout
        assert "node-0 is switched off: its SuperNode (process " in said
        stopped = written.read_bytes()
        thread.join()
    (run,) = map(Run, (tmp_path / "runs").iterdir())
    last = run.rounds[-1]["accuracy"]
    assert run.results["rounds"] == ROUNDS and [last[domain] is None for domain in DOMAINS] == [True, False, False]
    assert written.read_bytes() == stopped  # nothing left it any more
    for index in range(3):
        checked = log.read(written.parents[1] / f"node-{index}")
        assert (checked.problems, checked.interrupted, len(log.runs(checked))) == ([], 0, 1)
        rounds = {sent.round for sent in checked.sent if sent.message == "train"}
        assert rounds == set(range(1, ROUNDS + 1)) if index else max(rounds) < ROUNDS
