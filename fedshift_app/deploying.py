"""The deployment demo: a SuperLink and four SuperNodes on loopback, each with only its own images."""

import tempfile
from pathlib import Path
from typing import Any

from datasets import cache
from fedshift_app import config as configuration
from fedshift_app import exporting, keeping, processes, runner

ROUNDS = 4  # each message starts a process of its own, so a round takes some 10 s on two cores


def demo(flat: dict[str, Any]) -> Path:
    """Run ``handwritten`` on real SuperNodes, one per domain, and end them again.

    Returns:
        The run folder.

    Raises:
        FedShiftError: If a process does not start or the run fails.
    """
    flat = {"rounds": ROUNDS} | flat
    config = configuration.resolve(flat)
    number = len(config.dataset.domains)
    flat["set"] = f"{flat.get('set', '')} federation.min_nodes={number}".strip()
    with tempfile.TemporaryDirectory(prefix="fedshift-") as name:
        home = Path(name)
        folders = exporting.export(config, number, home / "nodes")
        # The nodes are gone afterwards, so neither their decoded images nor their private parts must stay behind.
        own = {cache.CACHE_DIR: str(home / "cache"), keeping.STATE_DIR: str(home / "state")}
        environment = runner.environment(home) | own
        with processes.group(runner.empty_folder(home), environment) as flower:
            port = processes.free_port()
            runner.start_superlink(flower, port)
            for folder in folders:
                start_supernode(flower, port, folder)
            return runner.submit(flower, home, port, flat, [])


def start_supernode(flower: processes.Group, port: int, folder: exporting.NodeFolder) -> None:
    """Start the SuperNode of one folder; one thread, as in simulation, so that the numbers are the same."""
    address = ["--superlink", f"127.0.0.1:{port}", "--port", str(processes.free_port())]
    flower.start(
        f"supernode-{folder.index}",
        [
            processes.command("flower-supernode"),
            "--insecure",
            *address,
            "--node-config",
            f"{folder.node_config} threads=1",
        ],
    )
