"""``fedshift new-method`` and ``new-plugin``."""

from pathlib import Path

import typer

from fedshift.run.options import command

app = typer.Typer()


@command(app)
def new_method(name: str, *, output: Path | None = None) -> None:
    """Write a package with a method of your own: the files of one of ours, and what installs them.

    It runs as it is. `pip install -e FOLDER`, and every command knows the method; `pytest FOLDER` holds it to what all
    methods must do. For simulation, workers and SuperNodes. See docs/guide/own-method.md.

    Args:
        name (NAME): Of the method: lower-case letters, digits and hyphens.
        output (-o, --output): A new folder; by default NAME.

    Examples:
        fedshift new-method my-method
        fedshift new-method my-method -o packages/my-method
    """
    from fedshift.run.create import writing

    typer.echo(writing.write("method", name, output))


@command(app)
def new_plugin(name: str, *, output: Path | None = None) -> None:
    """Write one file with a method of your own, an experiment that names it, and a test; nothing to install.

    It runs as it is, in simulation and inline. For SuperNodes: `fedshift new-method`.

    Args:
        name (NAME): Of the method: lower-case letters, digits and hyphens.
        output (-o, --output): A new folder; by default NAME.

    Examples:
        fedshift new-plugin my-method
        fedshift new-plugin my-method -o plugins/my-method
    """
    from fedshift.run.create import writing

    typer.echo(writing.write("plugin", name, output))
