"""A real federation with TLS and node keys, at whose door strangers knock while it runs. Real processes."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import ROOT, InlineRun, Run

from fedshift.run.launch import credentials, local_superlink, processes, runner
from fedshift.run.launch.credentials import Credentials
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving as configuration
from fedshift_app.node import state_folder
from fedshift_datasets.io import cache

#: Two nodes of 18 images.
TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"
ROUNDS = 2
LIMIT = 120
JOINED = "SuperNode ID:"


@dataclass
class Site:
    """A SuperLink with TLS and keys, its processes, and two SuperNodes that belong to it."""

    home: Path
    flower: processes.Group
    link: local_superlink.SuperLink
    strangers: dict[str, subprocess.Popen[bytes]]

    @property
    def ca(self) -> list[str]:
        return ["--root-certificates", str(self.link.credentials.ca_certificate)]

    def stranger(self, name: str, *security: str) -> None:
        """Start a SuperNode that the federation does not know."""
        command = [processes.command("flower-supernode"), "--superlink", self.link.address, *security]
        node_config = f'domain="scan" data-dir="{self.home / "nodes" / "node-0-scan"}" partition-id=0'
        more = ["--port", str(processes.free_port()), "--node-config", node_config]
        self.strangers[name] = self.flower.start(name, [*command, *more])

    def refusal(self, name: str) -> str:
        """Return what a stranger wrote until it gave up."""
        assert self.strangers[name].wait(timeout=LIMIT) != 0
        return " ".join(self.flower.log(name).read_text(errors="replace").split())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a federation of two nodes."""
    home = tmp_path_factory.mktemp("site")
    folders = exporting.export(configuration.resolve({"experiment": "handwritten", "set": TINY}), 2, home / "nodes")
    own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state")}
    paths = {"PYTHONPATH": str(ROOT)}  # this checkout, whichever one is installed
    with processes.group(local_superlink.empty_folder(home), local_superlink.environment(home) | own | paths) as flower:
        link = local_superlink.SuperLink(processes.free_port(), deploy_demo.make_credentials(home))
        local_superlink.start_superlink(flower, link)
        local_superlink.connect(home, link)
        for folder in folders:
            deploy_demo.start_supernode(flower, link, folder, deploy_demo.make_node_key(flower, home, folder))
        yield Site(home, flower, link, {})


@pytest.mark.slow
@pytest.mark.long
def test_strangers_are_refused_and_the_run_is_unharmed(site: Site, run_inline: InlineRun, tmp_path: Path) -> None:
    """Same weights as a run in one process that nobody disturbed."""
    credentials.make_authority(tmp_path / "other")
    unknown, _ = credentials.make_node(tmp_path / "keys", "unknown")
    wrong = ["--root-certificates", str(Credentials(tmp_path / "other").ca_certificate)]
    site.stranger("no-key", *site.ca)
    site.stranger("unregistered-key", *site.ca, "--auth-supernode-private-key", str(unknown))
    site.stranger("no-ca", "--auth-supernode-private-key", str(site.home / "keys" / "node-0-scan.key"))
    site.stranger("wrong-ca", *wrong)
    site.stranger("no-tls", "--insecure", "--max-retries", "1")

    flat = {"experiment": "handwritten", "rounds": ROUNDS, "output-dir": str(tmp_path / "runs")}
    folder = runner.submit(site.flower, site.home, flat | {"set": f"{TINY} federation.min_nodes=2"}, [])

    assert "All SuperNodes must be registered" in site.refusal("no-key")
    assert "Failed to activate SuperNode" in site.refusal("unregistered-key")
    assert "CERTIFICATE_VERIFY_FAILED" in site.refusal("no-ca")
    assert "CERTIFICATE_VERIFY_FAILED" in site.refusal("wrong-ca")
    assert "Failed to initialize the connection" in site.refusal("no-tls")
    for name in site.strangers:
        assert JOINED not in site.flower.log(name).read_text(errors="replace"), name
    run = Run(folder)
    assert run.results["engine"] == "deployment"
    undisturbed = run_inline(nodes=2, rounds=ROUNDS, set=TINY)
    assert run.results["weights_sha256"] == undisturbed.results["weights_sha256"]
