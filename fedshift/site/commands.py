"""``fedshift site``: what the owner of a real node looks at and decides, on the node's own machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedshift.run.options import Bounds, command, form_of
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_ROUNDS, WHOLE_PATH, shown
from fedshift_core.spelling import begun_with

app = typer.Typer()
site_app = typer.Typer(
    no_args_is_help=True, help="On a real node, for its owner: what has left it, a report on it, and an end to it."
)
app.add_typer(site_app, name="site")


def _nodes(incomplete: str) -> list[str]:
    """Complete the name of a real node of this machine."""
    from fedshift.site import nodes

    return begun_with(nodes.names(), incomplete)


@command(site_app, "log")
def site_log(
    node: Annotated[str, _nodes] = "",
    *,
    run: str = "",
    server_round: Annotated[int | None, Bounds(0, MOST_ROUNDS)] = None,
    as_json: bool = False,
) -> None:
    """Verify the log of all that has left a node, and show it by run, with sums of bytes and epsilon.

    Each line has time, run, round, name, shape, norm, the number of images behind it and a SHA-256 of the bytes.
    Epsilon of a run is the sum over its replies, an upper bound. Exits with 1 if a line is missing, changed or in
    another place.

    Args:
        node ([NODE]): The node's folder in $FEDSHIFT_STATE, such as node-0; needed where several nodes are on this
            machine.
        run: A line for each reply of this run; the beginning of its id is enough.
        server_round (--round): With --run: each array, number and text of this round.
        as_json: One JSON object.

    Examples:
        fedshift site log
        fedshift site log NODE --round 3 --json
    """
    if server_round is not None and not run:
        raise ConfigError("--round: give --run with it; each run has rounds of its own")
    from fedshift.site import log, nodes

    checked = log.read(nodes.named(node).folder)
    if as_json:
        lines = [json.dumps(log.as_object(checked), indent=2)]
    elif run:
        run = log.run_of(checked, run)
        lines = log.of_run(checked, run) if server_round is None else [*log.of_round(checked, run, server_round)]
    else:
        lines = log.by_run(checked)
    typer.echo("\n".join(lines) or f"nothing left in round {server_round}")
    if not as_json:
        typer.echo(log.verdict(checked))
    more = len(checked.problems) - log.MOST_PROBLEMS
    for problem in [*checked.problems[: log.MOST_PROBLEMS], *([f"{more} more"] if more > 0 else [])]:
        typer.echo(f"error: {problem}", err=True)
    if checked.problems:
        raise SystemExit(exit_codes.FAILED)


@command(site_app, "stop")
def site_stop(node: Annotated[str, _nodes] = "", *, forget: bool = False, undo: bool = False) -> None:
    """Switch a node off and leave the federation: ends its SuperNode, drops what it works on, lets nothing leave.

    It stays off, also if a supervisor starts `fedshift supernode` again, until `--undo`. The server's run goes on
    without it where enough nodes are left (federation.min_nodes). The log of what left, the images and the key stay.

    Args:
        node ([NODE]): The node's folder in $FEDSHIFT_STATE, such as node-0; needed where several nodes are on this
            machine.
        forget: Delete its private parts, received model, reports and decoded images, too.
        undo: Let it be started again; starts nothing.

    Examples:
        fedshift site stop NODE
        fedshift site stop NODE --undo
    """
    if forget and undo:
        raise ConfigError("--undo and --forget exclude each other")
    from fedshift.site import nodes, stop
    from fedshift_app.node import chained_log

    chosen = nodes.named(node)
    if undo:
        was_off = chained_log.switch_on(chosen.folder)
        typer.echo(f"{shown(chosen.name)} {'may be started again' if was_off else 'was not switched off'}")
        return
    typer.echo(f"{shown(chosen.name)} is switched off: {stop.stop(chosen)}")
    if forget:
        for line in stop.forget(chosen):
            typer.echo(f"not deleted: {line}", err=True)
        typer.echo("deleted: what it kept of its runs, its reports and its decoded images")
    for line in stop.stays(chosen):
        typer.echo(f"stays: {line}")
    typer.echo(f"to take it back: {nodes.undo_command(chosen.name)}")


@command(site_app, "report", to="fedshift.site.report:write")
def site_report(
    node: Annotated[str, _nodes] = "",
    *,
    model: Path | None = None,
    data_dir: Path | None = None,
    domain: str = "",
    output: Path | None = None,
) -> None:
    """Write a page about a node for its owner: its images, the model's mistakes on them, and what changed since last.

    The page holds images, opens offline, and stays on this machine; only you may read it (mode 0600).

    Args:
        node ([NODE]): The node's folder in $FEDSHIFT_STATE, such as node-0; needed where several nodes are on this
            machine.
        model: A saved model (fedshift save, save-node); default: the last one received (--keep-model).
        data_dir: The folder of its images; default: that of its last start.
        domain: Its domain; default: that of its last start.
        output (-o, --output): The page to write; default: report.html in the node's folder.

    Examples:
        fedshift site report NODE
        fedshift site report NODE --data-dir /images -o report.html
    """


@command(site_app, "withdraw", to="fedshift.site.withdrawal:withdraw")
def site_withdraw(
    node: Annotated[str, _nodes] = "",
    *,
    model: Path,
    key: Path,
    patients: Path | None = None,
    output: Path | None = None,
) -> None:
    """Write this node's own sums, signed, by which the operator takes its images out of a model of fed3r or fedcgs.

    They are computed anew from the node's images, as they were in training, and its policy. Nothing is sent: hand the
    file to the operator, whose `fedshift withdraw RUN node=NAME sums=FILE` subtracts it. Who reads it has class means.

    Args:
        node ([NODE]): The node's folder in $FEDSHIFT_STATE, such as node-0; needed where several nodes are on this
            machine.
        model (--model DIR): The saved model of the run (fedshift save).
        key (--key FILE): The private key of this SuperNode.
        patients (--patients FILE): Only the images of these patients, one in each line; default: all images.
        output (-o, --output FILE): The file to write; default: withdrawal.safetensors in the node's folder.

    Examples:
        fedshift site withdraw NODE --model MODEL --key north.key
        fedshift site withdraw NODE --model MODEL --key north.key --patients list.txt -o north.withdrawal
    """


@command(site_app, "status")
def site_status(*, as_json: bool = False, as_metrics: bool = False) -> None:
    """List the nodes of this machine: whether each runs, is switched off, and what it last sent.

    What a SuperLink says of its SuperNodes: `fedshift status --site NAME`.

    Args:
        as_json: Print JSON.
        as_metrics: Prometheus' text form, with what a policy's budget leaves (docs/deploy/operation.md).

    Examples:
        fedshift site status
        fedshift site status --json
    """
    from fedshift.site import nodes, status
    from fedshift_app.node import state_folder
    from fedshift_app.run import metrics

    if form_of(json=as_json, metrics=as_metrics) == "metrics":
        typer.echo(metrics.text(status.samples(nodes.nodes()), status.ABOUT))
    elif as_json:
        typer.echo(json.dumps([status.fields(node) for node in nodes.nodes()], indent=2))
    elif here := nodes.nodes():
        typer.echo("\n".join(status.table(here)))
    else:
        typer.echo(f"{shown(state_folder.state_dir(), WHOLE_PATH)}: no node has worked on this machine")
