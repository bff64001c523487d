"""A year of a federation in two minutes: the server's disk is lost, and a node is upgraded and rolled back."""

import shutil
import signal
import sqlite3
import subprocess
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from real_federation import TINY, Federation, federation
from support import ROOT, InlineRun, Run, ran, until

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.node import own_code

pytestmark = [pytest.mark.slow, pytest.mark.long]

NEXT = "0.2.0"
IMAGES = "allocation.share=0.4"
SETTINGS = f"{IMAGES} model.name=cnn_bn train.precision=float32 federation.min_nodes=2 federation.node_timeout=400"
DATABASE, CREDENTIALS, RUNS = "superlink.db", "credentials", "runs"
LIMIT = 400.0  # seconds; for a machine that does much else


def next_version(folder: Path) -> Path:
    """Return the packages of a wheel of the next version, as an environment has them."""
    source, wheels, installed = (folder / name for name in ("source", "dist", "installed"))
    kept = ("fedshift", "conf", *own_code.PACKAGES, "pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
    for name in kept:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, source / name)
    for name in ("pyproject.toml", "fedshift_core/__init__.py"):
        text = (source / name).read_text()
        (source / name).write_text(text.replace('"0.1.0"', f'"{NEXT}"', 1))
    ran("-m", "hatchling", "build", "-t", "wheel", "-d", wheels, cwd=source, check=True)
    (wheel,) = wheels.glob(f"fedshift-{NEXT}-*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(installed)
    return installed


def back_up(home: Path) -> None:
    """Copy what a server keeps while it works, as docs/deploy/operation.md has it."""
    with sqlite3.connect(home / DATABASE) as database:
        database.execute("VACUUM INTO ?", (str(home / "copy.db"),))
    archive = ["tar", "--create", "--file", str(home / "copy.tar"), "--directory", str(home), CREDENTIALS, RUNS]
    assert subprocess.run(archive, check=False).returncode in (0, 1)  # 1: a file changed meanwhile


def lose_and_restore(site: Federation) -> Path:
    """Remove all that the server has, unpack the copy, and return the folder of the run there."""
    site.end("superlink", signal.SIGKILL)
    for name in (CREDENTIALS, RUNS):
        shutil.rmtree(site.home / name)
    for path in site.home.glob(f"{DATABASE}*"):
        path.unlink()
    subprocess.run(["tar", "--extract", "--file", site.home / "copy.tar", "--directory", site.home], check=True)
    shutil.copy(site.home / "copy.db", site.home / DATABASE)
    site.start_superlink("--database", str(site.home / DATABASE))
    (run,) = started(site.home)
    return run


def test_the_server_is_restored_and_a_node_upgraded_and_rolled_back_with_the_same_bits(
    tmp_path: Path, run_inline: InlineRun
) -> None:
    undisturbed = run_inline(f"method=fedbn nodes=2 rounds=4 {TINY} {SETTINGS}")
    newer, home = next_version(tmp_path), tmp_path / "site"
    ours, theirs = own_code.installed(), own_code.of_bundle(build_fab_from_disk(newer / "fedshift" / "app")).sha256
    options = ("--database", str(home / DATABASE))
    with federation(home, 2, f"{TINY} {IMAGES}", *options) as site, ThreadPoolExecutor() as pool:
        folder, key = NodeFolder(home / "nodes" / "node-1-sketch", "sketch", 1), home / "keys" / "node-1-sketch.key"

        def go_on(rounds: int, **more: str) -> Future[str]:
            return pool.submit(site.run, ROOT, method="fedbn", rounds=rounds, set=SETTINGS, **more)

        def restarted(installed: Path) -> None:
            site.end("node-1")
            site.start_node(folder, key, installed)

        cut = go_on(3)
        assert until(lambda: any(len(Run(path).rounds) == 1 for path in started(home)), LIMIT), cut
        back_up(home)
        run = lose_and_restore(site)
        assert 1 <= len(Run(run).rounds) < 3

        restarted(newer)
        go_on(3, resume=str(run))

        def ended(rounds: int) -> bool:
            return bool(go_on(rounds, resume=str(run)).result()) and has(run, rounds)

        refusal = f"runs {theirs} ({NEXT}), not {ours} (0.1.0): install that, or name it in code.trusted"
        assert until(lambda: refusal in site.flower.log("node-1").read_text(), LIMIT)
        site.end("superlink", signal.SIGKILL)
        site.policy.write_text(f"code: {{trusted: ['{ours}']}}\n")
        site.start_superlink(*options)
        assert until(lambda: ended(3), LIMIT), site.flower.tail("superlink")

        restarted(ROOT)
        assert until(lambda: ended(4), LIMIT), site.flower.tail("superlink")
        codes = {(line["code"], line.get("code_of_run", "")) for line in site.replies()}
        assert {code for code, _ in codes} == {ours, theirs} and (theirs, ours) in codes
    assert Run(run).results["weights_sha256"] == undisturbed.results["weights_sha256"]
    assert [line["losses"] for line in Run(run).rounds] == [line["losses"] for line in undisturbed.rounds]
    assert not any(line["left_out"] for line in Run(run).rounds)


def has(run: Path, rounds: int) -> bool:
    """Tell whether a run has ended with so many rounds."""
    return (run / "results.json").is_file() and Run(run).results["rounds"] == rounds


def started(home: Path) -> list[Path]:
    """Return the folders of runs that have a full round."""
    return [path.parent for path in home.glob(f"{RUNS}/*/metrics.jsonl")]
