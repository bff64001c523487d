"""The deployment demo: a SuperLink and four SuperNodes on loopback, each with only its own images."""

from pathlib import Path
from typing import Any

from datasets import cache
from fedshift_app.config import resolving as configuration
from fedshift_app.launch import credentials, exporting, processes, runner
from fedshift_app.node import shelves

ROUNDS = 4  # each message starts a process of its own, so a round takes some 10 s on two cores


def demo(flat: dict[str, Any], *, secure: bool = True) -> Path:
    """Run ``handwritten`` on real SuperNodes, one per domain, and end them again.

    Args:
        flat: The run's configuration.
        secure: TLS for all connections, and only SuperNodes with a registered key; False for neither.

    Returns:
        The run folder.

    Raises:
        FedShiftError: If a process does not start or the run fails.
    """
    flat = {"rounds": ROUNDS} | flat
    config = configuration.resolve(flat)
    number = len(config.dataset.domains)
    flat["set"] = f"{flat.get('set', '')} federation.min_nodes={number}".strip()
    with runner.temporary_folder() as home:
        folders = exporting.export(config, number, home / "nodes")
        # The nodes are gone afterwards, so neither their decoded images nor their private parts must stay behind.
        own = {cache.CACHE_DIR: str(home / "cache"), shelves.STATE_DIR: str(home / "state")}
        environment = runner.environment(home) | own
        with processes.group(runner.empty_folder(home), environment, remove=home) as flower:
            link = runner.SuperLink(processes.free_port(), make_credentials(home) if secure else None)
            runner.start_superlink(flower, link)
            runner.connect(home, link)
            for folder in folders:
                key = make_node_key(flower, home, folder) if secure else None
                start_supernode(flower, link, folder, key)
            return runner.submit(flower, home, flat, [])


def make_credentials(home: Path) -> credentials.Credentials:
    """Make a CA and the SuperLink's certificate for this machine's loopback."""
    made = credentials.Credentials(home / "credentials")
    credentials.make_authority(made.folder)
    credentials.make_server(made.folder, ["localhost", "127.0.0.1"])
    return made


def make_node_key(flower: processes.Group, home: Path, folder: exporting.NodeFolder) -> Path:
    """Make a SuperNode's key pair, register its public key, return its private one."""
    private, public = credentials.make_node(home / "keys", folder.path.name)
    runner.register(flower, public)
    return private


def start_supernode(
    flower: processes.Group, link: runner.SuperLink, folder: exporting.NodeFolder, key: Path | None
) -> None:
    """Start the SuperNode of one folder; one thread, as in simulation, so that the numbers are the same."""
    trust = ["--root-certificates", str(link.credentials.ca_certificate)] if link.credentials else ["--insecure"]
    identity = ["--auth-supernode-private-key", str(key)] if key else []
    flower.start(
        f"supernode-{folder.index}",
        [
            processes.command("flower-supernode"),
            *trust,
            *identity,
            *["--superlink", link.address, "--port", str(processes.free_port())],
            *["--node-config", f"{folder.node_config} threads=1"],
        ],
    )
