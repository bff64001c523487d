"""``fedshift export --compose``: compose.own.yaml for the images of an experiment, a service and a folder per node.

The services are those of docker/compose.yaml. What differs: certificate and keys are made here, not by a service; all
that is kept lies in folders next to the file, so the services run as the user who has made them; nodes obey the policy
``strict`` unless NODE_POLICY says otherwise.
"""

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedshift.run.launch import credentials
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.sections import RunConfig
from fedshift_app.node.policy import STRICT
from fedshift_clients.models import packages
from fedshift_core import private_files
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, as_found, shown
from fedshift_core.yaml_files import as_yaml

FILE, EXPERIMENT = "compose.own.yaml", "experiment.yaml"
HOME = "/var/fedshift"  # in a container
SUPERLINK, PUBLIC, KEYS, STATE, RUNS, DATABASE = "superlink", "public", "keys", "state", "runs", "database"
PORT = 9094  # of a SuperNode, on its loopback: the health check asks there
HOSTS = ["superlink", "localhost", "127.0.0.1"]  # by which nodes and the flwr command call the SuperLink
HEAD = """\
# Made by `fedshift export --compose`: a SuperLink, a SuperNode for each folder node-*, and a run that prints its table.
#
#   docker/build.sh                                                       # once, in a checkout: the image
#   docker compose -f {file} up                                 # here, in this folder
#   docker compose -f {file} down
#
# FEDSHIFT_IMAGE, FEDSHIFT_USER, NODE_POLICY and RUN_CONFIG are taken from the environment. Run folders: runs/.
# To run as another user than the one who exported: sudo chown -R UID:GID . and FEDSHIFT_USER=UID:GID.
"""


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
    _make_keys(output, names)
    for folder in (RUNS, DATABASE, *(f"{STATE}/{name}" for name in names)):
        private_files.make_folder(output / folder)
    content = {"resolved": _of_all_machines(config)}
    (output / EXPERIMENT).write_text(as_yaml(content), encoding="utf-8")
    file = output / FILE
    text = yaml.safe_dump(composed(nodes), sort_keys=False, allow_unicode=True, width=200)
    file.write_text(f"{HEAD.format(file=FILE)}\n{text}", encoding="utf-8")
    return file


def _make_keys(output: Path, names: Sequence[str]) -> None:
    """Make certificate and keys; the CA's key goes, so that nobody can sign a second SuperLink."""
    made = credentials.Credentials(output / SUPERLINK)
    credentials.make_authority(output / SUPERLINK)
    credentials.make_server(output / SUPERLINK, HOSTS)
    made.ca_key.unlink()
    (output / PUBLIC).mkdir()
    shutil.copy(made.ca_certificate, output / PUBLIC)
    for name in names:
        credentials.make_node(output / KEYS, name)
        (output / KEYS / f"{name}.pub").rename(output / PUBLIC / f"{name}.pub")


def _of_all_machines(config: RunConfig) -> dict[str, Any]:
    """Return the configuration without the folder of images, which each node has itself."""
    content: dict[str, Any] = config.model_dump(mode="json")
    content["dataset"]["data_dir"] = ""
    return content


def composed(nodes: Sequence[NodeFolder]) -> dict[str, Any]:
    """Return the content of the file."""
    names = [node.path.name for node in nodes]
    started = {name: {"condition": "service_started"} for name in names}
    run = f'experiment="{HOME}/{EXPERIMENT}" set="federation.min_nodes={len(nodes)}"'
    public, experiment = f"./{PUBLIC}:{HOME}/public:ro", f"./{EXPERIMENT}:{HOME}/{EXPERIMENT}:ro"
    network = {"network_mode": "service:superlink"}  # its Control API answers its loopback alone
    return {
        "services": {
            "superlink": _service("3g", restart="unless-stopped") | {
                "command": [
                    "fedshift", "superlink", "--credentials", f"{HOME}/superlink", "--database",
                    f"{HOME}/state/superlink.db",
                ],
                "networks": ["federation"],
                "volumes": [
                    f"./{SUPERLINK}:{HOME}/superlink:ro", f"./{DATABASE}:{HOME}/state", f"./{RUNS}:{HOME}/runs",
                    experiment,
                ],
                "healthcheck": _health(
                    "import ssl, urllib.request as u; u.urlopen('https://127.0.0.1:8000/health', timeout=4, "
                    f"context=ssl.create_default_context(cafile='{HOME}/superlink/ca.crt'))",
                    interval="5s", retries=12, start_period="20s",
                ),
            },
            "register": _service("1g") | {"command": ["/app/docker/register.sh"]} | network | {
                "volumes": [public],
                "depends_on": {"superlink": {"condition": "service_healthy"}},
            },
            "run": _service("1g") | {"command": ["/app/docker/submit.sh"]} | network | {
                "volumes": [public],
                "depends_on": {"register": {"condition": "service_completed_successfully"}} | started,
                "environment": {"RUN_CONFIG": f"${{RUN_CONFIG:-{run}}}"},
            },
            **{node.path.name: _node(node) for node in nodes},
        },
        "networks": {"federation": {"internal": True}},
    }  # fmt: skip


def _node(node: NodeFolder) -> dict[str, Any]:
    name, home = node.path.name, f"{HOME}/node"
    about = f'domain="{node.domains}" data-dir="{home}/images" partition-id={node.index} threads=1'
    return _service("3g", restart="unless-stopped") | {
        "command": [
            "fedshift", "supernode", "--policy", f"${{NODE_POLICY:-{STRICT}}}",
            "--root-certificates", f"{HOME}/public/ca.crt", "--auth-supernode-private-key", f"{home}/node.key",
            "--superlink", "superlink:8000", "--port", str(PORT), "--node-config", about.replace("$", "$$"),
        ],
        "networks": ["federation"],
        "depends_on": {
            "register": {"condition": "service_completed_successfully"},
            "superlink": {"condition": "service_healthy"},
        },
        "environment": {"FEDSHIFT_CACHE": f"{home}/state/cache", "FEDSHIFT_STATE": f"{home}/state"},
        "volumes": [
            f"./{name}:{home}/images:ro", f"./{KEYS}/{name}.key:{home}/node.key:ro", f"./{STATE}/{name}:{home}/state",
            f"./{PUBLIC}:{HOME}/public:ro",
        ],
        "healthcheck": _health(
            f"import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/health', timeout=4)",
            interval="15s", retries=4, start_period="30s",
        ),
    }  # fmt: skip


def _service(memory: str, restart: str = "no") -> dict[str, Any]:
    """Return what all services have: nothing that they do not need."""
    uid, gid = os.getuid(), os.getgid()
    return {
        "image": "${FEDSHIFT_IMAGE:-fedshift}",
        "user": f"${{FEDSHIFT_USER:-{uid}:{gid}}}",  # whose the folders are
        "init": True,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "tmpfs": ["/tmp", f"{HOME}:mode=1777"],  # for any FEDSHIFT_USER; no other user is in a container
        "mem_limit": memory,
        "cpus": 1.0,
        "restart": restart,
    }


def _health(code: str, *, interval: str, retries: int, start_period: str) -> dict[str, Any]:
    return {
        "test": ["CMD", "python", "-c", code], "interval": interval, "timeout": "5s", "retries": retries,
        "start_period": start_period,
    }  # fmt: skip


def after(file: Path) -> str:
    """Return the commands that start the services."""
    folder = shlex.quote(str(file.parent))
    return (
        f"{shown(file, WHOLE_PATH)}\n"
        "  docker/build.sh                                    # once, in a checkout of FedShift\n"
        f"  cd {folder} && docker compose -f {FILE} up"
    )
