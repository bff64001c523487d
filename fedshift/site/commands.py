"""``fedshift site``: what the owner of a real node looks at and decides, on the node's own machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedshift.run import options
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_ROUNDS, WHOLE_PATH, shown
from fedshift_core.plural import plural
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


Node = Annotated[
    str,
    typer.Argument(
        metavar="[NODE]",
        help="The node's folder in $FEDSHIFT_STATE, such as node-0; needed where several nodes are on this machine.",
        autocompletion=_nodes,
    ),
]


@site_app.command("log")
def site_log(
    node: Node = "",
    run: Annotated[
        str, typer.Option(help="A line for each reply of this run; the beginning of its id is enough.")
    ] = "",
    server_round: Annotated[
        int | None,
        typer.Option("--round", min=0, max=MOST_ROUNDS, help="With --run: each array, number and text of this round."),
    ] = None,
    as_json: options.JsonObject = False,
) -> None:
    """Verify the log of all that has left a node, and show it by run, with sums of bytes and epsilon.

    Each line has time, run, round, name, shape, norm, the number of images behind it and a SHA-256 of the bytes.
    Epsilon of a run is the sum over its replies, an upper bound. Exits with 1 if a line is missing, changed or in
    another place.
    """
    if server_round is not None and not run:
        raise ConfigError("--round: give --run with it; each run has rounds of its own")
    from fedshift.site import log, nodes

    checked = log.read(nodes.named(node).folder, lines_of=None if server_round is None else (run, server_round))
    if as_json:
        typer.echo(json.dumps(log.as_object(checked), indent=2))
    elif run:
        run = log.run_of(checked, run)
        lines = log.of_run(checked, run) if server_round is None else log.of_round(checked, run)
        typer.echo("\n".join(lines) or f"nothing left in round {server_round}")
    else:
        typer.echo("\n".join(log.by_run(checked)))
    if not as_json:
        typer.echo(log.verdict(checked))
    for problem in checked.problems:
        typer.echo(f"error: {problem}", err=True)
    if checked.more_problems:
        typer.echo(f"error: {checked.more_problems} more", err=True)
    if checked.problems:
        raise SystemExit(exit_codes.FAILED)


@site_app.command("stop")
def site_stop(
    node: Node = "",
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Delete its private parts, received model, reports and decoded images, too."),
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let it be started again; starts nothing.")] = False,
) -> None:
    """Switch a node off and leave the federation: ends its SuperNode, drops what it works on, lets nothing leave.

    It stays off, also if a supervisor starts `fedshift supernode` again, until `--undo`. The server's run goes on
    without it where enough nodes are left (federation.min_nodes). The log of what left, the images and the key stay.
    """
    if forget and undo:
        raise ConfigError("--undo and --forget exclude each other")
    from fedshift.site import nodes, stop

    chosen = nodes.named(node)
    if undo:
        was_off = stop.undo(chosen)
        typer.echo(f"{shown(chosen.name)} {'may be started again' if was_off else 'was not switched off'}")
        return
    typer.echo(f"{shown(chosen.name)} is switched off: {stop.stop(chosen)}")
    if forget:
        freed = stop.forget(chosen)
        typer.echo(f"deleted: {plural(freed.files, 'file', form=',')}, {plural(freed.bytes, 'byte', form=',')}")
        for line in freed.left:
            typer.echo(f"not deleted: {line}", err=True)
    for line in stop.stays(chosen):
        typer.echo(f"stays: {line}")
    typer.echo(f"to take it back: {nodes.undo_command(chosen.name)}")


@site_app.command("report")
def site_report(
    node: Node = "",
    model: Annotated[
        Path | None,
        options.path_option("A saved model (fedshift save, save-node); default: the last one received (--keep-model)."),
    ] = None,
    data_dir: Annotated[
        Path | None, options.path_option("The folder of its images; default: that of its last start.")
    ] = None,
    domain: Annotated[str, typer.Option(help="Its domain; default: that of its last start.")] = "",
    output: Annotated[
        Path | None,
        options.path_option("The page to write; default: report.html in the node's folder.", "-o", "--output"),
    ] = None,
) -> None:
    """Write a page about a node for its owner: its images, the model's mistakes on them, and what changed since last.

    The page holds images, opens offline, and stays on this machine; only you may read it (mode 0600).
    """
    from fedshift.site import nodes, report

    page = report.write(report.Wanted(nodes.named(node), model, data_dir, domain, output))
    typer.echo(f"report: {shown(page, WHOLE_PATH)}")


@site_app.command("status")
def site_status(as_json: options.Json = False) -> None:
    """List the nodes of this machine: whether each runs, is switched off, and what it last sent.

    What a SuperLink says of its SuperNodes: `fedshift status --site NAME`.
    """
    from fedshift.site import status

    typer.echo(status.as_json() if as_json else "\n".join(status.lines()))
