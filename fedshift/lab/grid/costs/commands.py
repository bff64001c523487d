"""``fedshift costs``."""

from typing import Annotated

import typer

from fedshift.run.catalog import completion
from fedshift.run.options import command, form_of
from fedshift_core.errors import FederationError

app = typer.Typer()


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
