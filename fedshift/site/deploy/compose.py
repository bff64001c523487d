"""``fedshift export --compose``: compose.own.yaml for the images of an experiment, a service and a folder per node.

The services are those of docker/compose.yaml. What differs: certificate and keys are made here, not by a service; all
that is kept lies in folders next to the file, so the services run as the user who has made them; nodes obey the policy
``strict`` unless NODE_POLICY says otherwise.
"""

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedshift.run.launch import credentials
from fedshift.run.texts import filled
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.sections import RunConfig
from fedshift_clients.models import packages
from fedshift_core import json_text, private_files
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, as_found, shown
from fedshift_core.yaml_files import as_yaml

FILE, EXPERIMENT = "compose.own.yaml", "experiment.yaml"
HOME = "/var/fedshift"  # in a container
IMAGES = Path(HOME, "node", "images")
SUPERLINK, PUBLIC, KEYS, STATE, RUNS, DATABASE = "superlink", "public", "keys", "state", "runs", "database"
PORT = 9094  # of a SuperNode, on its loopback: the health check asks there
HOSTS = ["superlink", "localhost", "127.0.0.1"]  # by which nodes and the flwr command call the SuperLink


def check(config: RunConfig) -> None:
    """Refuse an experiment whose server needs files of this machine, which no container has.

    Raises:
        ConfigError: With the key.
    """
    if config.plugins:
        raise ConfigError("--compose: plugins are for simulation only; install them as a package in the image")
    weights = config.model.weights
    if weights and not weights.startswith(packages.PREFIX):
        raise ConfigError(
            f"--compose: model.weights={as_found(weights)} lies on this machine, not in the image; allowed are weights "
            "of an installed package (package:NAME), or none"
        )


def write(config: RunConfig, nodes: Sequence[NodeFolder], output: Path) -> Path:
    """Write compose.own.yaml with all that its services need into the folder of exported images.

    Args:
        config: The run.
        nodes: Their folders in ``output``.
        output: The folder.

    Returns:
        The file.
    """
    names = [node.path.name for node in nodes]
    private_files.make_folder(output / PUBLIC)
    made = credentials.Credentials(output / SUPERLINK)
    credentials.make_authority(made.folder)
    credentials.make_server(made.folder, HOSTS)
    made.ca_key.unlink()  # so that nobody can sign a second SuperLink
    shutil.copy(made.ca_certificate, output / PUBLIC)
    for name in names:
        _, public = credentials.make_node(output / KEYS, name)
        public.rename(output / PUBLIC / public.name)
    for folder in (RUNS, DATABASE, *(f"{STATE}/{name}" for name in names)):
        private_files.make_folder(output / folder)
    content: dict[str, Any] = config.model_dump(mode="json")
    content["dataset"]["data_dir"] = ""  # each node has its own
    (output / EXPERIMENT).write_text(as_yaml({"resolved": content}), encoding="utf-8")
    (output / FILE).write_text(composed(nodes), encoding="utf-8")
    return output / FILE


def composed(nodes: Sequence[NodeFolder]) -> str:
    """Return the content of the file."""
    return filled(
        Path(__file__).with_name("compose.yaml.j2"),
        file=FILE,
        experiment=EXPERIMENT,
        home=HOME,
        port=PORT,
        nodes=nodes,
        user=f"{os.getuid()}:{os.getgid()}",
        about=[f"{replace(node, path=IMAGES).node_config} threads=1".replace("$", "$$") for node in nodes],
        json=json_text.text_of,
    )


def after(file: Path) -> str:
    """Return the commands that start the services."""
    folder = shlex.quote(str(file.parent))
    return (
        f"{shown(file, WHOLE_PATH)}\n"
        "  docker/build.sh                                    # once, in a checkout of FedShift\n"
        f"  cd {folder} && docker compose -f {FILE} up"
    )
