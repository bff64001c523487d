"""The SuperLink of one run, on loopback. It imports neither Flower nor torch, so it starts before them."""

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.run.launch import forked, processes, superlink
from fedshift.run.launch.credentials import Credentials
from fedshift_app.config.files import APP
from fedshift_core import json_text
from fedshift_core.env import FORK_SERVER, PLAIN_FLOWER, RAY_WORKER, STATUS_FILE, TELEMETRY, THREADS
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_core.paths import path_with_flower

CONNECTION = "fedshift"
#: Seconds between SuperExec's requests for work; its default is 1. A request costs both sides some 20 ms.
TASK_POLL_SECONDS = "0.5"
LONGEST_HOME = 35  # characters: Ray's sockets lie 70 below, and the path of one may have 107
SHORT_PARENT = "/tmp"  # for a run's folder where TMPDIR is too long


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink on this machine's loopback.

    Attributes:
        port: Where it listens, with all its APIs.
        credentials: TLS, and only SuperNodes with a registered key; None for neither.
    """

    port: int
    credentials: Credentials | None = None

    @property
    def address(self) -> str:
        """Return ``HOST:PORT``, as SuperNodes and ``flwr`` take it."""
        return f"127.0.0.1:{self.port}"


def start_superlink(flower: processes.Group, link: SuperLink, *options: str) -> None:
    """Start a SuperLink and wait until it answers."""
    begin_superlink(flower, link, *options)
    await_superlink(flower, link)


def begin_superlink(flower: processes.Group, link: SuperLink, *options: str) -> None:
    """Start a SuperLink. Without TLS no other user of this machine may submit a run to it."""
    own = link.credentials.superlink_options() if link.credentials else [superlink.ONLY_OWNER, "--insecure"]
    program = [sys.executable, "-m", "fedshift.run.launch.superlink"]
    flower.start("superlink", [*program, *own, *options, "--host", "127.0.0.1", "--port", str(link.port)])


def await_superlink(flower: processes.Group, link: SuperLink) -> None:
    """Wait until a SuperLink answers."""
    kind, authority = ("https", link.credentials.ca_certificate) if link.credentials else ("http", None)
    flower.wait_for_http("superlink", f"{kind}://{link.address}/health", authority)


def connect(home: Path, link: SuperLink) -> None:
    """Write the SuperLink's address and CA certificate into the ``flwr`` command's configuration."""
    if link.credentials is None:
        trust = "insecure = true"
    else:
        trust = f"root-certificates = {json_text.text_of(str(link.credentials.ca_certificate))}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{link.address}"\n{trust}\n',
        encoding="utf-8",
    )


def run_command(home: Path, federation: str, run_config: Mapping[str, Any]) -> list[str]:
    """Return the ``flwr`` command that submits the app and streams its log.

    Args:
        home: A folder for the file of the run's configuration.
        federation: The SuperLink's name in ``flwr``'s configuration.
        run_config: The app's configuration.

    Raises:
        ConfigError: With a key whose text is not Unicode, as the name of a file may be.
    """
    for key, value in run_config.items():
        if isinstance(value, str) and not value.isascii() and value.encode(errors="ignore").decode() != value:
            raise ConfigError(f"{key}: {shown(value)} holds bytes that are not UTF-8, which Flower cannot pass on")
    overrides = home / "run-config.toml"
    text = "".join(f"{key} = {json_text.text_of(value)}\n" for key, value in run_config.items())
    overrides.write_text(text, encoding="utf-8")
    return [processes.command("flwr"), "run", str(APP), federation, "--stream", "--run-config", str(overrides)]


@contextmanager
def temporary_folder(*, for_ray: bool = False) -> Iterator[Path]:
    """Yield a temporary folder for a run, which only its owner may enter.

    Args:
        for_ray: Ray's sockets lie in it: where TMPDIR is too long for their paths, it is made in ``/tmp``.

    Raises:
        ConfigError: If there is no place for one, as on a full disk, or none where Ray could start.
    """
    given = tempfile.gettempdir()
    long = for_ray and len(given) + len("/fedshift-12345678") > LONGEST_HOME
    parent = SHORT_PARENT if long else given
    try:
        folder = tempfile.TemporaryDirectory(prefix="fedshift-", dir=parent)
    except OSError as error:
        why = f"it is too long for Flower's simulation (at most {LONGEST_HOME}), and " if long else ""
        remedy = "set TMPDIR to a shorter folder, or run with engine=inline" if long else ""
        raise ConfigError(
            f"TMPDIR: {why}no temporary folder can be made in {shown(parent)}: {error.strerror}", remedy
        ) from None
    with folder as name:
        yield Path(name)


def empty_folder(home: Path) -> Path:
    """Make an empty working folder for Flower's processes: Python would import modules from it first."""
    folder = home / "empty"
    folder.mkdir()
    return folder


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's processes: own home, no installation at run time, and no reports unasked."""
    own = {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it Ray warns of a change to come
        **({"RAY_TMPDIR": str(home)} if len(str(home)) <= LONGEST_HOME else {}),
        STATUS_FILE: str(home / "status.json"),
        "PATH": path_with_flower(),
    }
    return {superlink.TASK_POLL: TASK_POLL_SECONDS, TELEMETRY: "0", **os.environ, **own}


@dataclass(frozen=True)
class Begun:
    """A SuperLink that is starting, for a simulation.

    Attributes:
        home: The temporary folder of its run.
        flower: Its processes.
        link: Where it will listen.
    """

    home: Path
    flower: processes.Group
    link: SuperLink


@contextmanager
def for_simulation(threads: int, libraries: Sequence[str] = ()) -> Iterator[Begun]:
    """Start a SuperLink for one simulation, and end it with all its processes when the block is left.

    Args:
        threads: CPU threads of a node for which ``train.threads`` is 0.
        libraries: Packages that all its processes will need, imported once where they are forked.
    """
    os.environ[THREADS] = str(threads)
    forks = sys.platform == "linux" and os.environ.get(PLAIN_FLOWER) != "1"
    with temporary_folder(for_ray=True) as home:
        env = environment(home) | (_with_forks(home) if forks else {})
        with processes.Group(empty_folder(home), env, home) as flower:
            # Nothing leaves this machine and no SuperNode joins; TLS would keep nobody out: it shows who the server is.
            begun = Begun(home, flower, SuperLink(processes.free_port()))
            if forks:  # the longer start first
                program = [sys.executable, "-m", "fedshift.run.launch.fork_server"]
                flower.start("fork-server", [*program, env[FORK_SERVER], *libraries])
            begin_superlink(flower, begun.link, "--simulation", "--isolation", "subprocess")
            yield begun


def _with_forks(home: Path) -> dict[str, str]:
    """Return what Ray and Flower read in order to fork their processes from the run's fork server.

    Flower's SuperExec looks for ``flwr-simulation`` in PATH: the one that stands for a fork comes first.
    """
    programs = home / "programs"
    programs.mkdir()
    program = programs / forked.SIMULATION
    program.write_text(f'#!/bin/sh\nexec {shlex.join(forked.command(forked.SIMULATION))} "$@"\n')
    program.chmod(0o700)
    path = f"{programs}{os.pathsep}{path_with_flower()}"
    return {FORK_SERVER: str(home / "forks"), RAY_WORKER: forked.__file__, "PATH": path}


def await_forks(flower: processes.Group) -> None:
    """Wait until the simulation can be forked; without, its processes start as Flower's and Ray's own do.

    Flower waits for half a minute for a simulation that it has begun to start.
    """
    address = flower.env.get(FORK_SERVER)
    if address is not None and forked.ask(address, [], processes.START_SECONDS) != 0:
        Path(address).unlink(missing_ok=True)
