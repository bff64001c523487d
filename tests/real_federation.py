"""A real federation for tests: a SuperLink with TLS, and `fedshift supernode` with keys and policies."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
def federation(home: Path, nodes: int = 2, images: str = TINY, experiment: str = "handwritten") -> Iterator[Federation]:
    """Yield a federation of nodes with keys and one policy; the second starts a new process for each message."""
    config = configuration.resolve({"experiment": experiment, "set": images})
    folders = exporting.export(config, nodes, home / "nodes")
    own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state"), "PYTHONPATH": str(ROOT)}
    policy = home / "policy.yaml"
    policy.write_text("least_images: 5\n")
    policy.chmod(0o600)
    with processes.group(local_superlink.empty_folder(home), local_superlink.environment(home) | own) as flower:
        link = local_superlink.SuperLink(processes.free_port(), deploy_demo.make_credentials(home))
        local_superlink.start_superlink(flower, link)
        local_superlink.connect(home, link)
        for folder in folders:
            key = deploy_demo.make_node_key(flower, home, folder)
            command = [sys.executable, "-m", "fedshift.site.deploy.supernode", *([COLD] if folder.index == 1 else [])]
            command += ["--root-certificates", str(home / "credentials" / "ca.crt"), "--superlink", link.address]
            command += ["--auth-supernode-private-key", str(key), "--node-config"]
            flower.start(f"node-{folder.index}", [*command, f'{folder.node_config} threads=1 policy="{policy}"'])
        yield Federation(home, flower, policy, own)


def copy_of_app(folder: Path) -> Path:
    """Return a folder with a copy of the app, as somebody has it who changes it."""
    for name in (*own_code.PACKAGES, *own_code.CONF):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    return folder
