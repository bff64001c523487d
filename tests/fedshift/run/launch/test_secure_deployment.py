"""A real federation with TLS and node keys, at whose door strangers knock while it runs. Real processes."""

import json
import subprocess
import sys
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
        assert self.link.credentials is not None
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

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the ``flwr`` command."""
        return subprocess.run(
            [processes.command("flwr"), *arguments], cwd=self.flower.folder, env=self.flower.env,
            capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a federation of two nodes."""
    home = tmp_path_factory.mktemp("site")
    folders = exporting.export(configuration.resolve({"experiment": "handwritten", "set": TINY}), 2, home / "nodes")
    own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state")}
    paths = {"PYTHONPATH": str(ROOT), "FEDSHIFT_LOG": "json"}  # this checkout, whichever one is installed
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
    check_status(site)


def check_status(site: Site) -> None:
    """The site says that both nodes are online and the run is over, whose lines were JSON."""
    ended = subprocess.run(
        [sys.executable, "-m", "fedshift", "status", "--site", runner.CONNECTION, "--json"],
        cwd=site.flower.folder, env=site.flower.env, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    output = json.loads(ended.stdout)
    assert [node["status"] for node in output["supernodes"]].count("online") == 2
    assert [run["status"] for run in output["runs"]] == ["finished:completed"]
    streamed = site.flwr("log", str(output["runs"][0]["run-id"]), runner.CONNECTION, "--show")
    logged = [json.loads(line) for line in streamed.stdout.splitlines() if line.startswith("{")]
    assert [line["round"] for line in logged if line.get("event") == "round"] == [1, 2]


@pytest.mark.slow
@pytest.mark.long
def test_flwr_without_the_ca_is_refused(site: Site, tmp_path: Path) -> None:
    credentials.make_authority(tmp_path)
    result = site.home / "config.toml"
    before = result.read_text()
    try:
        result.write_text(before.replace(str(site.home / "credentials"), str(tmp_path)))
        other_ca = site.flwr("list", runner.CONNECTION)
        result.write_text(f'[superlink.{runner.CONNECTION}]\naddress = "{site.link.address}"\n')
        system_cas = site.flwr("list", runner.CONNECTION)
        result.write_text(f'[superlink.{runner.CONNECTION}]\naddress = "{site.link.address}"\ninsecure = true\n')
        no_tls = site.flwr("list", runner.CONNECTION)
    finally:
        result.write_text(before)
    for ended in (other_ca, system_cas, no_tls):
        assert ended.returncode != 0, ended.stdout
        assert "finished" not in ended.stdout
    assert site.flwr("list", runner.CONNECTION).returncode == 0
