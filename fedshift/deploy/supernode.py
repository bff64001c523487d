"""Flower's SuperNode with short waits and warm processes: ``fedshift supernode``.

``fedshift.deploy.node_waits`` patches Flower; the SuperNode starts ``superexec.py``, which starts
``fork_server.py``.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fedshift.launch import processes
from fedshift_core.env import COMMAND, KEEP_MODEL, NODE_KEY, TELEMETRY
from fedshift_core.errors import FedShiftError

PORT = "--port"  # of `flower-supernode`
COLD = "--cold"  # the first option of this module as a program


def serve(options: list[str], *, warm: bool = True, keep_model: bool = False) -> None:
    """Run ``flower-supernode`` with these options in this process until it is stopped.

    Args:
        options: Of ``flower-supernode``.
        warm: Fork the process of each message from one that has imported its libraries.
        keep_model: Keep the last weights that the node is sent, for its owner's report.

    Raises:
        ConfigError: If the owner has switched the node off.
    """
    os.environ.setdefault(TELEMETRY, "0")  # before Flower is imported, which reads it then
    os.environ.pop(COMMAND, None)  # this process was not started by the user's command
    from fedshift.deploy import node_waits
    from fedshift.site import nodes

    nodes.note_start(node_config(options))
    if key := private_key(options):
        os.environ[NODE_KEY] = key
    if keep_model:
        os.environ[KEEP_MODEL] = "1"
    node_waits.run_supernode(with_port(options), warm=warm)


def node_config(options: Sequence[str]) -> dict[str, Any]:
    """Return what the options say of the node; empty where Flower will refuse them."""
    from flwr.common.config import parse_config_args

    given = _value(options, "--node-config")
    try:
        return dict(parse_config_args([given] if given else None))
    except (click.ClickException, OSError, ValueError):
        return {}


def private_key(options: Sequence[str]) -> str:
    """Return the absolute path of the private key by which the SuperLink knows the node; empty where there is none."""
    given = _value(options, "--auth-supernode-private-key")
    return str(Path(given).expanduser().absolute()) if given else ""


def _value(options: Sequence[str], name: str) -> str:
    """Return the value of one of Flower's options; empty where there is none."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument(name, dest="value")
    try:
        return str(parser.parse_known_args(list(options))[0].value or "")
    except (argparse.ArgumentError, ValueError):
        return ""


def with_port(options: Sequence[str]) -> list[str]:
    """Return the options with a free port of the loopback, if they name none.

    Flower's own default is one port, 9094, which only one SuperNode of a machine can have. Nobody needs to know the
    port: only the node's own processes talk to it, and they are given it.
    """
    if any(PORT.startswith(name) and len(name) > len("--p") for name in (given.partition("=")[0] for given in options)):
        return list(options)
    return [*options, PORT, str(processes.free_port())]


if __name__ == "__main__":
    given = sys.argv[1:]
    try:
        serve(given[1:], warm=False) if given[:1] == [COLD] else serve(given)
    except FedShiftError as error:
        sys.exit(f"error: {error}")
