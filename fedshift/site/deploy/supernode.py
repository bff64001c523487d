"""Flower's SuperNode with this node's own code, short waits and warm processes: ``fedshift supernode``.

``fedshift.site.deploy.node_waits`` patches Flower; the SuperNode starts ``superexec.py``, which starts
``fork_server.py``.
"""

import argparse
import os
import re
import socket
import ssl
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedshift.run.launch import processes
from fedshift_core.env import COMMAND, KEEP_MODEL, TELEMETRY
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.plural import plural

#: Options of `flower-supernode`.
NODE_CONFIG, CERTIFICATES, HOST, PORT = "--node-config", "--root-certificates", "--host", "--port"
NODE_VALUE = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # of NODE_CONFIG, as Flower reads it
INSTALL, ISOLATION, KEY = "--allow-runtime-dependency-installation", "--isolation", "--auth-supernode-private-key"
COLD = "--cold"  # the first option of this module as a program


def serve(options: list[str], *, warm: bool = True, keep_model: bool = False) -> None:
    """Run ``flower-supernode`` with these options in this process until it is stopped.

    Args:
        options: Of ``flower-supernode``.
        warm: Fork the process of each message from one that has imported its libraries.
        keep_model: Keep the last weights that the node is sent, for its owner's report.

    Raises:
        ConfigError: If an option is given twice, its file or port does not serve, or the owner has switched the node
            off.
        FedShiftError: If it cannot go on.
    """
    given, _ = parsed(options)
    _check_process(given)
    if CERTIFICATES in given:
        _check_certificates(given[CERTIFICATES])
    if PORT in given:
        _check_port(given.get(HOST, "127.0.0.1"), given[PORT])
    else:  # Flower's own is one port for all; only the node's own processes talk to it, and they are given it
        options = [*options, PORT, str(processes.free_port())]
    os.environ.setdefault(TELEMETRY, "0")  # before Flower is imported, which reads it then
    os.environ.pop(COMMAND, None)  # this process was not started by the user's command
    from fedshift.site import nodes
    from fedshift.site.deploy import node_waits

    nodes.note_start(node_config(options))
    if keep_model:
        os.environ[KEEP_MODEL] = "1"
    node_waits.run_supernode(options, warm=warm, key=Path(given[KEY]).expanduser() if KEY in given else None)


class _Parser(argparse.ArgumentParser):
    """Reads options as Flower's parser does, their beginnings too."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"options of flower-supernode: {message}")


def parsed(options: Sequence[str], *names: str) -> tuple[dict[str, str], list[str]]:
    """Return the values of Flower's options by name, of those that are looked at here or are named, and all others.

    Raises:
        ConfigError: If one is given twice: Flower takes the last one, and what the other says would not hold.
    """
    parser = _Parser(add_help=False)
    for name in names or (NODE_CONFIG, CERTIFICATES, HOST, PORT, ISOLATION, KEY):
        parser.add_argument(name, dest=name, action="append", default=[])
    if not names:
        parser.add_argument(INSTALL, dest=INSTALL, action="append_const", const="", default=[])
    found, others = parser.parse_known_args(list(options))
    for name, values in vars(found).items():
        if len(values) > 1:
            raise ConfigError(f"{name} is given {plural(len(values), 'time')}; give it once")
    return {name: values[0] for name, values in vars(found).items() if values}, others


def node_config(options: Sequence[str]) -> dict[str, Any]:
    """Return what the options say of the node; empty where Flower will refuse them."""
    given = parsed(options, NODE_CONFIG)[0].get(NODE_CONFIG, "")
    try:
        if given.endswith(".toml"):
            return tomllib.loads(Path(given).expanduser().read_text())
        return tomllib.loads("\n".join(f"{key} = {value}" for key, value in NODE_VALUE.findall(given)))
    except (OSError, ValueError):
        return {}


def _check_process(given: Mapping[str, str]) -> None:
    """Refuse options by which a run's code or libraries would come to the node."""
    option = f"{ISOLATION} {shown(given[ISOLATION])}" if given.get(ISOLATION, "subprocess") != "subprocess" else ""
    if option := INSTALL if INSTALL in given else option:
        raise ConfigError(
            f"{option}: a node that `fedshift supernode` starts runs nothing but what is installed there; leave it out"
        )


def _check_certificates(file: str) -> None:
    """Refuse ``--root-certificates`` of which Flower could make no connection."""
    try:
        content = Path(file).expanduser().read_bytes().decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{CERTIFICATES} {shown(file, WHOLE_PATH)}: expected the certificate of a CA in PEM (ca.crt), found: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from None


def _check_port(host: str, port: str) -> None:
    """Refuse a ``--port`` on which the node's own processes could not be listened to."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, int(port)), family=family).close()
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # Python adds the address
        raise ConfigError(
            f"{PORT} {port}: cannot listen on it at {shown(host)}: {reason}; name another one, or none for a free one"
        ) from None
    except (ValueError, OverflowError):  # no port at all: Flower says so
        return


if __name__ == "__main__":
    words = sys.argv[1:]
    try:
        serve(words[1:], warm=False) if words[:1] == [COLD] else serve(words)
    except FedShiftError as error:
        sys.exit(f"error: {error}")
