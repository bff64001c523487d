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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedshift.run.launch import processes
from fedshift_core.env import COMMAND, KEEP_MODEL, TELEMETRY
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.plural import plural

#: Options of `flower-supernode`.
NODE_CONFIG, CERTIFICATES, HOST, PORT = "--node-config", "--root-certificates", "--host", "--port"
NODE_VALUE = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # of NODE_CONFIG, as Flower reads it
INSTALL, ISOLATION = "--allow-runtime-dependency-installation", "--isolation"
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
    options = with_port(options)
    check_process(options)
    check_certificates(options)
    check_port(options)
    os.environ.setdefault(TELEMETRY, "0")  # before Flower is imported, which reads it then
    os.environ.pop(COMMAND, None)  # this process was not started by the user's command
    from fedshift.site import nodes
    from fedshift.site.deploy import node_waits

    nodes.note_start(node_config(options))
    if keep_model:
        os.environ[KEEP_MODEL] = "1"
    node_waits.run_supernode(options, warm=warm, key=private_key(options))


def node_config(options: Sequence[str]) -> dict[str, Any]:
    """Return what the options say of the node; empty where Flower will refuse them."""
    given = _value(options, NODE_CONFIG)
    try:
        if given.endswith(".toml"):
            return tomllib.loads(Path(given).expanduser().read_text())
        return tomllib.loads("\n".join(f"{key} = {value}" for key, value in NODE_VALUE.findall(given)))
    except (OSError, ValueError):
        return {}


def private_key(options: Sequence[str]) -> Path | None:
    """Return the file of the private key by which the SuperLink knows the node; None where there is none."""
    given = _value(options, "--auth-supernode-private-key")
    return Path(given).expanduser() if given else None


def check_process(options: Sequence[str]) -> None:
    """Refuse options by which a run's code or libraries would come to the node.

    Raises:
        ConfigError: If there is one.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(INSTALL, dest="installs", action="store_true")
    why = "a node that `fedshift supernode` starts runs nothing but what is installed there"
    if parser.parse_known_args([option for option in options if option.startswith("--")])[0].installs:
        raise ConfigError(f"{INSTALL}: {why}; leave it out")
    if (isolation := _value(options, ISOLATION) or "subprocess") != "subprocess":
        raise ConfigError(f"{ISOLATION} {shown(isolation)}: {why}; leave it out")


def check_certificates(options: Sequence[str]) -> None:
    """Refuse ``--root-certificates`` of which Flower could make no connection.

    Raises:
        ConfigError: If the file cannot be read, or holds no certificate.
    """
    file = _value(options, CERTIFICATES)
    if not file:
        return
    try:
        content = Path(file).expanduser().read_bytes().decode("ascii")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{CERTIFICATES} {shown(file, WHOLE_PATH)}: expected the certificate of a CA in PEM (ca.crt), found: "
            f"{getattr(error, 'strerror', None) or error}"
        ) from None


def check_port(options: Sequence[str]) -> None:
    """Refuse a ``--port`` on which the node's own processes could not be listened to.

    Raises:
        ConfigError: If it is taken, or this user may not listen on it.
    """
    host, port = _value(options, HOST) or "127.0.0.1", _value(options, PORT)
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


def _value(options: Sequence[str], name: str) -> str:
    """Return the value of one of Flower's options; empty where there is none.

    Raises:
        ConfigError: If it is given twice: Flower takes the last one, and what the other says would not hold.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument(name, dest="values", action="append", default=[])
    try:
        values = parser.parse_known_args(list(options))[0].values
    except (argparse.ArgumentError, ValueError):
        return ""
    if len(values) > 1:
        raise ConfigError(f"{name} is given {plural(len(values), 'time')}; give it once")
    return str(values[0]) if values else ""


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
