"""A real federation for tests: a SuperLink with TLS, and `fedshift supernode` with keys and policies."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from real_node import fingerprint
from support import ROOT

from fedshift.run.launch import local_superlink, processes, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting
from fedshift.site.deploy.supernode import COLD
from fedshift_app.config import files
from fedshift_app.config import resolving as configuration
from fedshift_app.node import own_code, state_folder
from fedshift_app.node.chained_log import REPLY
from fedshift_datasets.io import cache

#: Nodes of 18 images.
TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"
_COLOUR = re.compile(r"\x1b\[\d*m")


@dataclass
class Federation:
    """Its processes and folders; each node has a strict policy, or what its file says by then."""

    home: Path
    flower: processes.Group
    policy: Path
    own: dict[str, str]
    link: local_superlink.SuperLink

    def start_superlink(self, *options: str) -> None:
        """Start it and wait until it answers."""
        local_superlink.start_superlink(self.flower, self.link, *options)

    def start_node(self, folder: exporting.NodeFolder, key: Path, installed: Path = ROOT) -> None:
        """Start a SuperNode of the FedShift in a folder; that of index 1 starts a new process for each message."""
        command = [sys.executable, "-m", "fedshift.site.deploy.supernode", *([COLD] if folder.index == 1 else [])]
        command += ["--root-certificates", str(self.home / "credentials" / "ca.crt"), "--superlink", self.link.address]
        command += ["--auth-supernode-private-key", str(key), "--node-config"]
        command += [f'{folder.node_config} threads=1 policy="{self.policy}"']
        self.flower.start(f"node-{folder.index}", ["env", f"PYTHONPATH={installed}", *command])

    def end(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """End a process that was started, with all that it started, and wait for that."""
        first = psutil.Process(self.flower._running[name].pid)
        family = [first, *first.children(recursive=True)]
        for process in family if number == signal.SIGKILL else [first]:
            with suppress(psutil.Error):
                process.send_signal(number)
        psutil.wait_procs(family, timeout=60)

    def run(self, app: Path, **run_config: Any) -> str:
        """Submit an app with ``flwr run``; return what the server printed."""
        flat = {"experiment": "handwritten", "rounds": 1, "output-dir": str(self.home / "runs"), **run_config}
        flat["set"] = f"{TINY} federation.node_timeout=25 {flat.get('set', '')}"
        command = local_superlink.run_command(self.home, runner.CONNECTION, flat)
        command[command.index(str(files.APP))] = str(app)
        ended = subprocess.run(
            command, cwd=self.flower.folder, env=self.flower.env, capture_output=True, text=True, check=False
        )
        return _COLOUR.sub("", ended.stdout + ended.stderr)

    def replies(self) -> list[dict[str, Any]]:
        """Return what the nodes' logs say of each reply that left them."""
        found = sorted((self.home / "state").glob("*/out.jsonl"))
        lines = [json.loads(line) for path in found for line in path.read_text().splitlines()]
        return [line for line in lines if line["kind"] == REPLY]

    @property
    def fingerprints(self) -> list[str]:
        """Those of the nodes' keys."""
        return [fingerprint(key) for key in self.home.glob("keys/*.pub")]


@contextmanager
def opened(
    home: Path,
    nodes: int,
    settings: str,
    start: Any = deploy_demo.start_supernode,
    options: Sequence[str] = (),
    experiment: str = "handwritten",
    **env: str,
) -> Iterator[Any]:
    """Open a SuperLink with TLS and SuperNodes with keys; ``start`` starts each, as it stands without a policy."""
    home.mkdir(exist_ok=True)
    config = configuration.resolve({"experiment": experiment, "set": settings})
    folders = exporting.export(config, nodes, home / "nodes")
    own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state"), "PYTHONPATH": str(ROOT)}
    with processes.Group(local_superlink.empty_folder(home), local_superlink.environment(home) | own | env) as flower:
        link = local_superlink.SuperLink(processes.free_port(), deploy_demo.make_credentials(home))
        local_superlink.start_superlink(flower, link, *options)
        local_superlink.connect(home, link)
        for folder in folders:
            start(flower, link, folder, deploy_demo.make_node_key(flower, home, folder))
        yield SimpleNamespace(home=home, flower=flower, link=link, own=own)


@contextmanager
def federation(
    home: Path, nodes: int = 2, images: str = TINY, *options: str, experiment: str = "handwritten"
) -> Iterator[Federation]:
    """Yield a federation of nodes with one policy; ``options`` are those of the SuperLink."""
    home.mkdir(exist_ok=True)
    policy = home / "policy.yaml"
    policy.write_text("least_images: 5\n")
    policy.chmod(0o600)

    def start(flower: processes.Group, link: Any, folder: exporting.NodeFolder, key: Path) -> None:
        Federation(home, flower, policy, {}, link).start_node(folder, key)

    with opened(home, nodes, images, start, options, experiment) as site:
        yield Federation(home, site.flower, policy, site.own, site.link)


def copy_of_app(folder: Path) -> Path:
    """Return a folder with a copy of the app, as somebody has it who changes it."""
    for name in (*own_code.PACKAGES, *own_code.CONF):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder
