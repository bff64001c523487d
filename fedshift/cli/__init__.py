"""The ``fedshift`` command."""

import gc
import os
import platform
import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from fedshift.cli import catalog as catalog_commands
from fedshift.cli import help_pages
from fedshift.data import commands as data_commands
from fedshift.export import commands as export_commands
from fedshift.lab.grid import commands as grid_commands
from fedshift.lab.tables.compare import commands as compare_commands
from fedshift.run.catalog import completion
from fedshift.run.create import commands as create_commands
from fedshift.run.options import command
from fedshift.site import commands as site_commands
from fedshift.site.deploy import commands as deploy_commands
from fedshift_app.run import exit_codes
from fedshift_core import __version__
from fedshift_core.env import COMMAND, SWEEP_PROCESS
from fedshift_core.errors import REFUSALS, ConfigError, FedShiftError
from fedshift_core.limits import WHOLE_PATH, plain, shown

#: Signals that end the command in order, and its exit code then.
STOPPING = {signal.SIGINT: exit_codes.CTRL_C, signal.SIGTERM: exit_codes.TERMINATED, signal.SIGHUP: exit_codes.HANGUP}

app = typer.Typer(
    cls=help_pages.Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated learning under domain shift, as one Flower app.",
)


def print_version(show: bool) -> None:
    """Print the versions that a bug report should name, and exit."""
    if show:
        typer.echo(version())
        raise typer.Exit


@app.callback()
def common_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Federated learning under domain shift, as one Flower app."""


for part in (
    data_commands,
    grid_commands,
    create_commands,
    catalog_commands,
    compare_commands,
    export_commands,
    site_commands,
    deploy_commands,
):
    app.add_typer(part.app)


@command(app)
def run(
    arguments: Annotated[list[str] | None, completion.arguments] = None,
    *,
    allow_changed: bool = False,
    trust_plugins: bool = False,
    dry: bool = False,
    as_json: bool = False,
) -> None:
    """Run an experiment through `flwr run` and print accuracies per domain.

    Keys: method, dataset, rounds, seed, evaluate-every, evaluate-fraction, data-dir, output-dir, name, profile, set;
    tracking=tensorboard; resume=FOLDER, alone or with the keys of the run that is continued; round=N, with resume,
    to go back to an earlier round that is kept;
    dotted ones such as method.tau=0.07 or train.lr=0.005; and how to launch: engine=simulation|inline, nodes=N,
    actors=N (clients at a time), cpus-per-client=N, gpus-per-client=X; workers=N, processes of engine=inline;
    report=false: no report.html at the end.

    Args:
        arguments ([EXPERIMENT] [KEY=VALUE ...]): See `fedshift experiments`; keys below.
        allow_changed: With resume: take changed settings, and note them in the results.
        trust_plugins: Run the Python files that the run folder keeps.
        dry (--dry-run): Only show configuration, nodes, images, and what it will take.
        as_json: Print the outcome as one JSON object on the last line, also of a failure; the rest on stderr.

    Examples:
        fedshift run handwritten method=i2pfl rounds=10 seed=1
        fedshift run handwritten engine=inline --json
    """
    from fedshift_app.config.arguments import parse_arguments

    typed = [*(arguments or []), *(["allow-changed=true"] if allow_changed else [])]
    if trust_plugins:
        from fedshift_app.config import plugins

        for file in plugins.trust(parse_arguments(typed)[0]):
            typer.echo(f"code from the run folder will run: {shown(file, WHOLE_PATH)}", err=True)
    if dry:
        if as_json:
            raise ConfigError("give --dry-run or --json, not both: --json is the outcome of a run")
        from fedshift.lab.grid.costs import dry_run

        typer.echo(dry_run.summary(*parse_arguments(typed)))
        return
    from fedshift.run.launch import json_line

    with json_line.printed(on=as_json) as outcome:
        from fedshift.run.launch import running
        from fedshift_app.run import status

        flat, launch = parse_arguments(typed)
        folder = running.run(flat, launch, note=outcome.begun)
        if launch.get("report", True):
            report_after_run(folder)
        typer.echo(f"run folder: {shown(folder, WHOLE_PATH)}")
        status.exit_if_degraded(folder)


@command(app)
def status(
    arguments: list[str] | None = None,
    *,
    as_json: bool = False,
    as_metrics: bool = False,
    watch: bool = False,
    site: str = "",
) -> int:
    """Show how a run stands, by default the newest of output-dir. Exits with 3 if it failed or was interrupted.

    Args:
        arguments ([RUN_FOLDER] [output-dir=DIR]): Keys, see above.
        as_json: One JSON object.
        as_metrics: Prometheus' text form, with exit code 0 in any state (docs/deploy/operation.md).
        watch: Again every 2 s until the run ends.
        site: Ask this SuperLink of ~/.flwr/config.toml for its SuperNodes and runs instead.

    Examples:
        fedshift status
        fedshift status runs/FOLDER --watch
    """
    from fedshift.run.launch import watching

    return watching.show(arguments or [], as_json=as_json, as_metrics=as_metrics, watch=watch, site=site)


@command(app)
def doctor(*, renew: bool = False, as_json: bool = False, publish: bool = False) -> int:
    """Show this machine, what trains fastest on it, and its problems, which make the exit code 1.

    Args:
        renew: Measure again what trains fastest here.
        as_json: One JSON object.
        publish: Look instead whether the app's folder is what Flower Hub takes.

    Examples:
        fedshift doctor
        fedshift doctor --json
    """
    from fedshift.run.doctor import doctor as machine

    if publish:
        if renew:
            raise ConfigError("give --publish or --renew, not both: --publish looks at the app alone")
        return machine.show_publishing(as_json=as_json)
    return machine.show(renew=renew, as_json=as_json)


@command(app)
def version(*, bundle: bool = False) -> str:
    """Print the version of FedShift, or the hash of its code, which nodes compare with their own.

    Args:
        bundle: Print the hash of the code that a run of it brings.

    Examples:
        fedshift version
        fedshift version --bundle
    """
    if bundle:
        from fedshift_app.node import own_code

        return own_code.installed()
    from importlib import metadata

    return f"fedshift {__version__} (Flower {metadata.version('flwr')}, Python {platform.python_version()})"


@command(app)
def app_dir() -> str:
    """Print the folder of the Flower app, for `flwr run "$(fedshift app-dir)"`.

    Examples:
        fedshift app-dir
        fedshift run handwritten --dry-run
    """
    from fedshift_app.config import files

    return str(files.APP)


@command(app)
def report(folder: Path, arguments: list[str] | None = None) -> None:
    """Write report.html into a run folder: what the run came to, on one page that opens offline.

    Keys: data-dir, the folder of the test images; images, how many of each domain are scored (2000), or all.
    The exit code is 5 where something could not be drawn, with the reason.

    Args:
        folder (RUN): A run folder.
        arguments ([data-dir=DIR] [images=N|all]): Keys, see above.

    Examples:
        fedshift report runs/FOLDER
        fedshift report runs/FOLDER images=all
    """
    if not _is_drawn(folder, arguments or []):
        raise SystemExit(exit_codes.PARTLY_DRAWN)


def _is_drawn(folder: Path, arguments: list[str]) -> bool:
    """Write the report of a run, print what could not be drawn, and why; return whether nothing is missing."""
    from fedshift.lab.pages.report import command

    made = command.run(folder, arguments)
    typer.echo(f"report: {shown(made.page, WHOLE_PATH)}")
    for line in made.lacks:
        typer.echo(f"not drawn: {plain(line, WHOLE_PATH)}", err=True)
    return not made.lacks


def report_after_run(folder: Path) -> None:
    """Write the report of a run that has just finished; print a line if that fails."""
    try:
        _is_drawn(folder, [])
    except (FedShiftError, SystemExit) as error:  # the run is finished, also if one stops here
        why = "stopped" if isinstance(error, SystemExit) else str(error)
        again = f"fedshift report {shown(shlex.quote(str(folder)), WHOLE_PATH)}"
        typer.echo(f"report: none ({why}); to try again: {again}", err=True)


def fail(error: FedShiftError) -> NoReturn:
    """Show a user's mistake and exit with 1, or with 78 if a sweep must not try again."""
    typer.echo(f"error: {error}", err=True)
    refused = isinstance(error, REFUSALS) and SWEEP_PROCESS in os.environ
    raise SystemExit(exit_codes.REFUSED if refused else exit_codes.FAILED)


def stop(signum: int, _frame: FrameType | None) -> NoReturn:
    """Exit on the first signal; the command stops what it started, which takes some time."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    raise SystemExit(STOPPING[signal.Signals(signum)])


def main() -> None:
    """Entry point of the ``fedshift`` command."""
    gc.set_threshold(20_000)  # imports make many objects and no garbage; looking for it takes a tenth of their time
    os.environ[COMMAND] = shlex.join(["fedshift", *sys.argv[1:]])
    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, stop)
    try:
        app()
    except FedShiftError as error:
        fail(error)
    except OSError as error:  # a full disk or a forbidden folder: a traceback would not help
        fail(FedShiftError(f"{error.filename}: {error.strerror}" if error.filename else str(error)))
