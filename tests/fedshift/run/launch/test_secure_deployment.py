"""A real federation with TLS and node keys, at whose door strangers knock while it runs. Real processes."""

from pathlib import Path

import pytest
from real_federation import opened
from support import InlineRun, Run

from fedshift.run.launch import credentials, processes, runner
from fedshift.run.launch.credentials import Credentials

#: Two nodes of 18 images.
TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"
ROUNDS = 2
LIMIT = 120
JOINED = "SuperNode ID:"


@pytest.mark.slow
@pytest.mark.long
def test_strangers_are_refused_and_the_run_is_unharmed(run_inline: InlineRun, tmp_path: Path) -> None:
    """Same weights as a run in one process that nobody disturbed."""
    credentials.make_authority(tmp_path / "other")
    unknown, _ = credentials.make_node(tmp_path / "keys", "unknown")
    home = tmp_path / "site"
    own = home / "keys" / "node-0-scan.key"
    with opened(home, 2, TINY) as site:
        key, root = "--auth-supernode-private-key", "--root-certificates"
        ca, other = (str(each.ca_certificate) for each in (site.link.credentials, Credentials(tmp_path / "other")))
        node_config = f'domain="scan" data-dir="{home / "nodes" / "node-0-scan"}" partition-id=0'
        strangers = []
        for security, refusal in (
            ([root, ca], "All SuperNodes must be registered"),
            ([root, ca, key, str(unknown)], "Failed to activate SuperNode"),
            ([key, str(own)], "CERTIFICATE_VERIFY_FAILED"),
            ([root, other], "CERTIFICATE_VERIFY_FAILED"),
            (["--insecure", "--max-retries", "1"], "Failed to initialize the connection"),
        ):
            name = f"stranger-{len(strangers)}"
            command = [processes.command("flower-supernode"), "--superlink", site.link.address, *security]
            more = ["--port", str(processes.free_port()), "--node-config", node_config]
            strangers.append((name, site.flower.start(name, [*command, *more]), refusal))
        flat = {"experiment": "handwritten", "rounds": ROUNDS, "output-dir": str(tmp_path / "runs")}
        run = Run(runner.submit(site.flower, home, flat | {"set": f"{TINY} federation.min_nodes=2"}, []))
        for name, process, refusal in strangers:
            assert process.wait(timeout=LIMIT) != 0
            log = " ".join(site.flower.log(name).read_text(errors="replace").split())
            assert refusal in log and JOINED not in log, name
    assert run.results["engine"] == "deployment"
    undisturbed = run_inline(f"nodes=2 rounds={ROUNDS} {TINY}")
    assert run.results["weights_sha256"] == undisturbed.results["weights_sha256"]
