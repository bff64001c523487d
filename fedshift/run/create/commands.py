"""``fedshift new-method`` and ``new-plugin``."""

from pathlib import Path
from typing import Annotated

import typer

from fedshift.run import options

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the method: lower-case letters, digits and hyphens.")]
Output = Annotated[Path | None, options.path_option("A new folder; by default NAME.", "-o", "--output")]


@app.command("new-method")
def new_method(name: Name, output: Output = None) -> None:
    """Write a package with a method of your own: the files of one of ours, and what installs them.

    It runs as it is. `pip install -e FOLDER`, and every command knows the method; `pytest FOLDER` holds it to what all
    methods must do. For simulation, workers and SuperNodes. See docs/guide/own-method.md.
    """
    from fedshift.run.create import writing

    typer.echo(writing.write("method", name, output))


@app.command("new-plugin")
def new_plugin(name: Name, output: Output = None) -> None:
    """Write one file with a method of your own, an experiment that names it, and a test; nothing to install.

    It runs as it is, in simulation and inline. For SuperNodes: `fedshift new-method`.
    """
    from fedshift.run.create import writing

    typer.echo(writing.write("plugin", name, output))
