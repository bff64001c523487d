"""``fedshift run``: calls ``flwr run`` on a SuperLink that belongs to this run alone."""

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift.run.launch import forked, log_filter, processes
from fedshift.run.launch.local_superlink import (
    CONNECTION,
    Begun,
    await_forks,
    await_superlink,
    connect,
    run_command,
    temporary_folder,
)
from fedshift.run.launch.progress_table import Screen
from fedshift_app.config.files import APP as APP
from fedshift_app.config.sections import RunConfig
from fedshift_app.run import flwr_run, status
from fedshift_core.env import FORK_SERVER, STATUS_FILE
from fedshift_core.errors import REFUSALS, ConfigError, FederationError, FedShiftError

if TYPE_CHECKING:
    from fedshift.run.engine import inline


@dataclass(frozen=True)
class Resources:
    """The resources of one client in simulation.

    Attributes:
        cpus: CPU cores; as many clients run side by side as fit.
        gpus: Share of a GPU; 0 on a machine without one.
        actors: At most so many clients at a time; None for as many as fit.
    """

    cpus: int
    gpus: float
    actors: int | None = None

    def federation_config(self, nodes: int) -> str:
        """Return the value of ``flwr run --federation-config``."""
        resources = (
            f"num-supernodes={nodes} client-resources-num-cpus={self.cpus} client-resources-num-gpus={self.gpus}"
        )
        return resources if self.actors is None else f"{resources} init-args-num-cpus={self.actors * self.cpus}"


def num_nodes(config: RunConfig, requested: int | None) -> int:
    """Return how many SuperNodes the experiment needs.

    Raises:
        ConfigError: If ``requested`` does not fit its allocation.
    """
    number = requested or flwr_run.usual_nodes(config)
    config.allocation.deal(config.dataset.domains, number, config.seed)
    return number


def resources(config: RunConfig, nodes: int, launch: Mapping[str, Any]) -> Resources:
    """Return the resources of one client: by default one core, and an equal share of the GPU if there is one.

    Raises:
        ConfigError: If not even one client fits this machine: Ray says so after a minute, in three tracebacks.
    """
    import torch

    cpus, gpus, actors = (launch.get(key) for key in ("cpus-per-client", "gpus-per-client", "actors"))
    cores, devices = os.cpu_count() or 1, torch.cuda.device_count() if torch.cuda.is_available() else 0
    most = math.inf if actors else cores  # with actors Ray is given as many cores as they take
    if cpus is not None and cpus > most:
        raise ConfigError(f"cpus-per-client: expected at most {cores}, the cores of this machine, found {cpus}")
    if gpus is not None and gpus > devices:
        raise ConfigError(f"gpus-per-client: PyTorch can use no GPU of this machine, found {gpus:g}; leave it out")
    cpus = cpus or int(min(config.train.threads, most)) or 1
    share = devices / max(1, min(nodes, cores // cpus)) if gpus is None else gpus
    return Resources(cpus, min(share, 1.0), actors)


def run_simulation(
    begun: Begun, run_config: dict[str, Any], nodes: int, settle: Callable[[], Resources], screen: Screen | None = None
) -> Path:
    """Run the app through ``flwr run`` in Flower's simulation engine, streaming its log.

    Args:
        begun: The run's SuperLink, which is starting.
        run_config: The app's configuration.
        nodes: The number of simulated nodes.
        settle: Does the slow checks before a run while the SuperLink starts; returns the resources of one client.
        screen: The display of the run; None for lines.

    Returns:
        The run folder.

    Raises:
        FederationError: If the run failed.
    """
    each = settle()
    await_superlink(begun.flower, begun.link)
    await_forks(begun.flower)
    connect(begun.home, begun.link)
    options = ["--federation-config", each.federation_config(nodes)]
    return submit(begun.flower, begun.home, run_config, options, screen, alone=True)


def register(flower: processes.Group, public_key: Path) -> None:
    """Let the SuperNode with this key join.

    Raises:
        FederationError: If the SuperLink does not take it.
    """
    ended = subprocess.run(
        [processes.command("flwr"), "supernode", "register", str(public_key), CONNECTION],
        cwd=flower.folder,
        env=flower.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise FederationError(f"cannot register {public_key}:\n{ended.stdout}{ended.stderr}".rstrip())


def run_inline(
    run_config: dict[str, Any],
    nodes: int,
    number: int = 1,
    screen: Screen | None = None,
    *,
    grid: "inline.LocalGrid | None" = None,
) -> Path:
    """Run the app in this process, or its nodes in several worker processes, and return the run folder.

    Args:
        run_config: The app's configuration.
        nodes: The number of simulated nodes.
        number: The number of worker processes.
        screen: The display of the run; None for lines.
        grid: The nodes, where they are other ones.

    Raises:
        FedShiftError: If the run cannot start or cannot go on.
    """
    # torch: only when a run starts in this process
    from fedshift.run.engine import inline
    from fedshift.run.engine.workers import WorkersGrid
    from fedshift_app import client_app, server_app
    from fedshift_app.flower.internals import make_context

    with temporary_folder() as home, contextlib.ExitStack() as stack:
        status_file = home / "status.json"
        os.environ[STATUS_FILE] = str(status_file)
        stack.callback(os.environ.pop, STATUS_FILE)
        screen = stack.enter_context(_followed(status_file, screen))
        if grid is None and number > 1:
            grid = stack.enter_context(contextlib.closing(WorkersGrid(nodes, number)))
        try:
            server_app.app(grid or inline.InlineGrid(client_app.app, nodes), make_context(0, {}, run_config))
        except FedShiftError as error:
            if (folder := screen.find()) is None:
                raise
            raise _failure(isinstance(error, REFUSALS), str(error), folder) from None
        return Path(json.loads(status_file.read_text())["run_folder"])


def submit(
    flower: processes.Group,
    home: Path,
    run_config: dict[str, Any],
    options: list[str],
    screen: Screen | None = None,
    *,
    alone: bool = False,
) -> Path:
    """Submit the app with ``flwr run`` to the SuperLink of :func:`connect`, stream the log, return the run folder.

    With ``alone`` the group serves this run only: it is killed when all is written, without Ray's and Flower's farewell
    of some seconds.

    Raises:
        FederationError: If the run failed.
    """
    if not (APP / "pyproject.toml").is_file():
        raise ConfigError(f"no pyproject.toml in {APP}; install FedShift again (docs/start/installing.md)")
    command = run_command(home, CONNECTION, run_config)
    if FORK_SERVER in flower.env:
        command = [*forked.command(forked.FLWR), *command[1:]]
    with _followed(home / "status.json", screen) as shown:
        command += options
        returncode = log_filter.call(command, flower.folder, flower.env, shown.out, early=alone)
    folder = _outcome(home / "status.json", returncode, flower)
    flower.done = alone
    return folder


@contextlib.contextmanager
def _followed(status_file: Path, shown: Screen | None) -> Iterator[Screen]:
    """Show the run in the block; at its end hand its folder on, and print how to resume it if it was interrupted."""
    screen = shown or Screen()
    screen.watch(status_file)
    try:
        yield screen
    except (KeyboardInterrupt, SystemExit):
        folder = screen.find()
        how = f"; {_go_on(folder)}" if folder else " before the first round: there is no run folder"
        with contextlib.suppress(OSError):  # its terminal is gone
            print(f"interrupted{how}".rstrip("; "), file=sys.stderr)
        raise
    finally:
        if (folder := screen.find()) is not None and screen.note is not None:
            screen.note(folder)


def _go_on(folder: Path) -> str:
    """Return how to resume a run; empty if it was stopped before its first status was written."""
    try:
        return f"continue with: {status.resume_command(folder, status.read(folder).engine)}"
    except ConfigError:
        return ""


def _outcome(status_file: Path, returncode: int, flower: processes.Group) -> Path:
    """Read the ServerApp's last status; ``flwr run`` itself exits 0 when a run fails."""
    if not status_file.is_file():
        raise FederationError(f"the run did not start (flwr run: {returncode}):\n{flower.tail('superlink')}")
    last = json.loads(status_file.read_text())
    if last["state"] not in (status.COMPLETED, status.DEGRADED):
        folder = last["run_folder"]
        raise _failure(bool(last.get("refused")), last["error"], folder and Path(folder))
    return Path(last["run_folder"])


def _failure(refused: bool, error: str, folder: Path | None) -> FedShiftError:
    """Return the error of a failed run, with its folder; of a class by which a sweep knows what would fail again."""
    lines = [f"the results so far are in {folder}", _go_on(folder)] if folder else []
    return (ConfigError if refused else FederationError)(error, "\n".join(filter(None, lines)))
