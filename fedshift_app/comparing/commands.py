"""``fedshift claims``."""

from pathlib import Path
from typing import Annotated

import typer

from fedshift_wire.errors import ConfigError

app = typer.Typer()


@app.command("claims")
def claims(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs that compare, or folders that hold such folders.")
    ],
    score: Annotated[
        str, typer.Option(help="Which accuracies: last5, final, bn=WAY, ...; as `compare` has it.")
    ] = "last5",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Hold runs against each gain over FedAvg that the papers print: seen, not seen, reversed or not comparable."""
    from fedshift_app.comparing import claims as claiming

    if markdown and as_json:
        raise ConfigError("give --markdown or --json, not both")
    found = claiming.claims(folders, score=score)
    typer.echo(found.markdown() if markdown else found.json() if as_json else found.text())
