"""The address of a Ray cluster: refused, before anything is loaded, where none answers."""

import socket
import subprocess

from fedshift.run.launch import processes
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

KEY = "--ray"
CLIENT = "ray://"  # of addresses for machines that are no nodes of the cluster
CONNECT_SECONDS = 5.0  # for a port to open
ANSWER_SECONDS = 30.0  # for Ray to answer there; Ray's own patience is minutes


def check(address: str) -> None:
    """Refuse an address at which no cluster of Ray answers; quickly.

    Raises:
        ConfigError: With what was found.
    """
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ConfigError(f"{KEY}: expected HOST:PORT or {CLIENT}HOST:PORT, found {as_found(address)}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        why = error.strerror or str(error) or "no answer"
        raise ConfigError(f"{KEY}: nothing answers at {as_found(address)}: {why}; see `ray start`") from None
    if address.startswith(CLIENT):
        return
    # In a process of its own, as Ray waits for minutes, or ends the process, where another program answers.
    probe = [processes.command("ray"), "health-check", "--address", address]
    try:
        code = subprocess.run(probe, capture_output=True, timeout=ANSWER_SECONDS, check=False).returncode
    except subprocess.TimeoutExpired:
        code = -1
    if code:
        raise ConfigError(f"{KEY}: no cluster of Ray answers at {as_found(address)}; see `ray status`")
