"""The deployment demo: a SuperLink and SuperNodes on loopback, each with only its own images."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedshift.run.launch import credentials, local_superlink, processes, runner
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving as configuration
from fedshift_app.config.arguments import LAUNCH_KEYS, parse_arguments
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import policy, state_folder
from fedshift_app.run import naming
from fedshift_core.errors import ConfigError
from fedshift_datasets.io import cache

EXPERIMENT = "handwritten"
MOST_NODES = 16  # the most SuperNodes of a demo
#: Keys of `fedshift run` that a demo refuses: it starts a new run, on processes of its own.
REFUSED = ("resume", "round", *LAUNCH_KEYS)
#: A demo's images are nobody's: no owner hides anything, so that its numbers are those of a simulation.
OPEN_POLICY = f'{policy.POLICY}="{policy.OPEN}"'
#: Defaults of the demo's own experiment: enough rounds to see that it learns.
ROUNDS = 4


def read(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the run-config keys of a demo.

    Args:
        arguments: ``[EXPERIMENT] [KEY=VALUE ...]``, the keys of ``fedshift run`` but for ``REFUSED``.

    Raises:
        ConfigError: If a demo does not have a key, or a value has the wrong type.
    """
    if refused := {argument.partition("=")[0] for argument in arguments} & {*REFUSED}:
        taken = ", ".join(key for key in configuration.FLAT_KEYS if key not in REFUSED)
        raise ConfigError(
            f"{min(refused)}: deploy-demo starts a new run on its own SuperNodes, by allocation.counts or one per "
            f"domain; it accepts {taken}, and dotted keys such as train.lr"
        )
    flat, _ = parse_arguments(list(arguments))
    return (
        flat if flat.get("experiment") or flat.get("dataset") else {"experiment": EXPERIMENT, "rounds": ROUNDS} | flat
    )


def demo(flat: dict[str, Any], *, secure: bool = True) -> Path:
    """Run an experiment on real SuperNodes, one per domain or as its allocation says, and end them.

    Args:
        flat: The run's configuration, from :func:`read`.
        secure: TLS for all connections, and only SuperNodes with a registered key; False for neither.

    Returns:
        The run folder.

    Raises:
        FedShiftError: If a process does not start or the run fails.
    """
    config, number, flat = planned(flat)
    naming.check_free(Path(flat["output-dir"]), flat.get("name", ""))
    with local_superlink.temporary_folder() as home:
        folders = exporting.export(config, number, home / "nodes")
        # The nodes do not exist afterwards, so their decoded images and private parts are removed.
        own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state")}
        environment = local_superlink.environment(home) | own
        with processes.Group(local_superlink.empty_folder(home), environment, remove=home) as flower:
            link = local_superlink.SuperLink(processes.free_port(), make_credentials(home) if secure else None)
            local_superlink.start_superlink(flower, link)
            local_superlink.connect(home, link)
            for folder in folders:
                key = make_node_key(flower, home, folder) if secure else None
                start_supernode(flower, link, folder, key)
            return runner.submit(flower, home, flat, [])


def planned(flat: dict[str, Any]) -> tuple[RunConfig, int, dict[str, Any]]:
    """Return a demo's configuration, its number of SuperNodes, and the run-config keys that it is submitted with.

    Rounds wait for all SuperNodes, unless ``federation.min_nodes`` was given.

    Raises:
        ConfigError: If the configuration is wrong, or takes more SuperNodes than one machine should start.
    """
    config = configuration.resolve(flat)
    trained = config.allocation.training_domains(config.dataset.domains)
    number = config.allocation.num_nodes() or len(trained)
    if number > MOST_NODES:
        raise ConfigError(f"allocation.counts: deploy-demo starts at most {MOST_NODES} SuperNodes, found {number}")
    config.allocation.deal(config.dataset.domains, number, config.seed)
    waits = f"federation.min_nodes={number} {flat.get('set', '')}".strip()  # the typed value takes precedence
    return config, number, flat | {"set": waits}


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
    flower: processes.Group,
    link: local_superlink.SuperLink,
    folder: exporting.NodeFolder,
    key: Path | None,
    *,
    plain: bool = False,
) -> None:
    """Start the SuperNode of one folder; one thread, as in simulation, so that the numbers are the same.

    Args:
        flower: The group that its process joins.
        link: Its SuperLink.
        folder: Its images.
        key: Its private key, where it needs one.
        plain: Start Flower's own ``flower-supernode``.
    """
    ours = [sys.executable, "-m", "fedshift.site.deploy.supernode"]
    trust = ["--root-certificates", str(link.credentials.ca_certificate)] if link.credentials else ["--insecure"]
    identity = ["--auth-supernode-private-key", str(key)] if key else []
    where = ["--superlink", link.address, "--port", str(processes.free_port())]
    about = ["--node-config", f"{folder.node_config} threads=1 {OPEN_POLICY}"]
    command = [processes.command("flower-supernode")] if plain else ours
    flower.start(f"supernode-{folder.index}", [*command, *trust, *identity, *where, *about])
