"""``fedshift sweep``, ``rescore``, ``evaluate``, ``tune`` and ``costs``."""

from pathlib import Path
from typing import Annotated

import typer

from fedshift.run.catalog import completion
from fedshift.run.options import command, form_of
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError, FederationError

app = typer.Typer()


@command(app)
def sweep(
    arguments: Annotated[list[str] | None, completion.arguments] = None,
    *,
    paper: str = "",
    listed: bool = False,
    slurm: Path | None = None,
    into: str = "",
    ray: str = "",
    dry: bool = False,
) -> None:
    """Run a grid on all cores, and compare. The same command again continues an interrupted one.

    Keys may hold several values, with commas: method=fedavg,i2pfl seed=0,1,2 method.tau=0.02,0.07. Further keys:
    order=seed-first|method-first, retries=N (1), reuse=true (take finished runs of output-dir), jobs=N (so many side by
    side; engine=simulation: one after another).

    Args:
        arguments ([EXPERIMENT] [KEY=VALUE,VALUE ...]): Keys of `fedshift run`, and those below.
        paper: A printed table to compare the runs with, see `fedshift papers`.
        listed (--list): Run nothing: print a command for each run.
        slurm: With --list: write them as the array of one Slurm job.
        into (--in): Do one run, as --list prints it, in this sweep's folder.
        ray: Do the runs on the nodes of the Ray cluster at HOST:PORT.
        dry (--dry-run): Only show hours, disk and traffic of all runs.

    Examples:
        fedshift sweep handwritten method=fedavg,i2pfl seed=0,1,2 engine=inline
        fedshift sweep handwritten method=fedavg seed=0,1 engine=inline --list
    """
    if sum(map(bool, (listed, into, ray, dry, paper and not ray))) > 1 or (slurm is not None and not listed):
        raise ConfigError(
            "sweep: --list, --in FOLDER, --dry-run, --ray HOST:PORT and --paper TABLE exclude one another, but for "
            "--paper with --ray; --slurm FILE goes with --list"
        )
    from fedshift.lab.grid.sweep import listing, on_ray, sweeping

    typed = arguments or []
    if dry:
        from fedshift.lab.grid.costs import grid_dry_run

        typer.echo(grid_dry_run.sweep(typed))
    elif listed:
        listing.show(typed, slurm)
    elif into:
        listing.run_point(typed, into)
    else:
        comparison = on_ray.sweep(typed, paper, ray) if ray else sweeping.sweep(typed, paper)
        rows = comparison.numbers.rows if comparison is not None else ()
        if any(run.results.losses.lines() for row in rows for run in row.runs):  # the notes of the table name them
            raise SystemExit(exit_codes.DEGRADED)


@command(app, to="fedshift.lab.grid.rescore.command:rescore")
def rescore(arguments: list[str]) -> None:
    """Score the models of finished runs in another way, without training: other corruptions, adaptations, statistics.

    RUN: a run folder, or a folder that holds some. Keys may hold several values, with commas: adapt.name=none,tent,eata
    shift.severity=1,3,5; further keys: output-dir=DIR, jobs=N side by side. Each is a run folder of its own, which
    `fedshift compare` reads. The same command again does what is left.

    Args:
        arguments (RUN ... [KEY=VALUE,VALUE ...]): Keys, see above.

    Examples:
        fedshift rescore runs/FOLDER shift.name=corruption shift.severity=1,3,5
        fedshift rescore runs adapt.name=none,tent
    """


@command(app, to="fedshift.lab.grid.evaluate.command:evaluate")
def evaluate(arguments: Annotated[list[str], completion.arguments], *, site: str = "", as_json: bool = False) -> None:
    """Score finished models on all nodes, without training: how good are they on the images of a site?

    Any number of models side by side, on the images of their own run or on others: dataset, data-dir, dataset.domains=
    [...] and the other keys of dataset, allocation, shift, adapt, federation; evaluate.bn; seed; output-dir; and how
    to launch, as `fedshift run`: engine=simulation|inline, nodes=N, ...; report=true: a report.html for each model.
    Prints one table and writes evaluate.json, evaluate.csv and a run folder for each model. Exits with 4 if a node was
    lost.

    Args:
        arguments (MODEL ... [KEY=VALUE ...]): Folders that `fedshift save` wrote, or run folders; keys below.
        site: Ask the real nodes of this SuperLink of ~/.flwr/config.toml, on its machine.
        as_json: One JSON object.

    Examples:
        fedshift evaluate MODEL data-dir=MY_IMAGES
        fedshift evaluate MODEL --site hospital --json
    """


@command(app)
def tune(
    arguments: Annotated[list[str] | None, completion.arguments] = None, *, paper: str = "", dry: bool = False
) -> None:
    """Search each method's values with the same budget, by validation images only, and compare them tuned and as is.

    budget=N trials of each method; seed=0,1,2 for the comparison, the first one for the search; search.KEY=[LOW,HIGH],
    [LOW,HIGH,log], [LOW,HIGH,whole], {values: [A,B]} or off, where the method's own range is not wanted; pruning=false:
    no trial ends early; trial-rounds=N rounds for a trial, fewer than a compared run has; jobs=N methods side by side.
    The same command again goes on where it was interrupted. Needs the extra `tune`: Optuna.

    Args:
        arguments ([EXPERIMENT] [method=A,B] budget=N [KEY=VALUE ...]): Keys of `fedshift run`.
        paper: A printed table to compare the runs with, see `fedshift papers`.
        dry (--dry-run): Only show hours, disk and traffic of all runs.

    Examples:
        fedshift tune handwritten method=fedavg,i2pfl budget=20 seed=0,1,2
        fedshift tune handwritten method=fedprox budget=8 jobs=2
    """
    if dry:
        from fedshift.lab.grid.costs import grid_dry_run

        typer.echo(grid_dry_run.tune(arguments or []))
        return
    from fedshift.lab.grid.tune import tuning

    tuning.tune(arguments or [], paper)


@command(app)
def costs(
    arguments: Annotated[list[str] | None, completion.costs] = None,
    *,
    paper: str = "",
    markdown: bool = False,
    as_json: bool = False,
) -> None:
    """Measure what methods cost in an experiment: FLOPs, seconds, bytes, parameters (as F2DC, Table 4).

    A few real rounds are played in this process; seconds are those of this machine.

    Args:
        arguments (METHOD... [EXPERIMENT] [KEY=VALUE ...]): Keys of `fedshift run`, and nodes=N.
        paper: A printed table of costs to compare with: f2dc.table4.
        markdown: Print Markdown.
        as_json: Print JSON.

    Examples:
        fedshift costs fedavg i2pfl handwritten
        fedshift costs fedavg f2dc handwritten nodes=4 --markdown
    """
    from fedshift.lab.grid.costs import command

    form = form_of(markdown=markdown, json=as_json)
    table = command.run(arguments or [], paper)
    typer.echo(getattr(table, form)())
    if table.failed:
        raise FederationError(f"failed, and not in the table: {', '.join(table.failed)}")
