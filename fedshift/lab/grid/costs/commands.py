"""``fedshift costs``."""

from typing import Annotated

import typer

from fedshift.run import options
from fedshift.run.catalog import completion
from fedshift_core.errors import FederationError

app = typer.Typer()


@app.command()
def costs(
    arguments: Annotated[
        list[str] | None,
        options.arguments(
            "METHOD... [EXPERIMENT] [KEY=VALUE ...]", "Keys of `fedshift run`, and nodes=N.", completion.costs
        ),
    ] = None,
    paper: Annotated[str, typer.Option(help="A printed table of costs to compare with: f2dc.table4.")] = "",
    markdown: options.Markdown = False,
    as_json: options.Json = False,
) -> None:
    """Measure what methods cost in an experiment: FLOPs, seconds, bytes, parameters (as F2DC, Table 4).

    A few real rounds are played in this process; seconds are those of this machine.
    """
    from fedshift.lab.grid.costs import command

    form = options.table_form(markdown=markdown, as_json=as_json)
    table = command.run(arguments or [], paper)
    typer.echo(form(table))
    if table.failed:
        raise FederationError(f"failed, and not in the table: {', '.join(table.failed)}")
