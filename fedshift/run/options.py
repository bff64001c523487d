"""Arguments and options that several commands declare, and the three forms in which tables are printed."""

from collections.abc import Callable
from typing import Annotated, Any, Protocol

import typer

from fedshift.run.catalog import completion
from fedshift_core.errors import ConfigError
from fedshift_core.paths import typed_path

Complete = Callable[..., list[str]]

Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonObject = Annotated[bool, typer.Option("--json", help="One JSON object.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show hours, disk, traffic and FLOPs of all runs.")]
PaperTable = Annotated[str, typer.Option(help="A printed table to compare the runs with, see `fedshift papers`.")]


def arguments(metavar: str, help: str | None = None, complete: Complete | None = completion.arguments) -> Any:
    """Return the declaration of arguments in the order that a command reads, ``[EXPERIMENT] [KEY=VALUE ...]``."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete)


def name_argument(help: str, complete: Complete) -> Any:
    """Return the declaration of the one thing that a list describes in full."""
    return typer.Argument(metavar="[NAME]", help=help, autocompletion=complete)


def path_option(help: str, *flags: str) -> Any:
    """Return the declaration of an option that names a file or folder."""
    return typer.Option(*flags, help=help, parser=typed_path)


def path_argument(help: str, metavar: str | None = None) -> Any:
    """Return the declaration of an argument that names a file or folder."""
    return typer.Argument(metavar=metavar, help=help, parser=typed_path)


class Table(Protocol):
    """What prints in three forms."""

    def text(self) -> str:
        """Return aligned lines."""

    def markdown(self) -> str:
        """Return a Markdown table."""

    def json(self) -> str:
        """Return all numbers."""


def table_form(*, markdown: bool, as_json: bool) -> Callable[[Table], str]:
    """Return what makes the requested form of a table.

    Raises:
        ConfigError: If both are requested.
    """
    if markdown and as_json:
        raise ConfigError("give --markdown or --json, not both")
    return lambda table: table.markdown() if markdown else table.json() if as_json else table.text()
