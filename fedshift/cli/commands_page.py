"""The page of all commands, their arguments and options: ``fedshift commands``."""

from collections.abc import Iterator

import click
import typer
from typer.cli import get_docs_for_click

from fedshift import cli
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

HEAD = """\
# Commands

This page is what `fedshift commands` prints. In a terminal `--help` after a command shows its part.

Exit codes are on [a page of their own](exit-codes.md); keys of the configuration in [keys](keys.md)."""


def markdown(begin: str = "") -> str:
    """Return the page of commands, or of those whose names begin so.

    Raises:
        ConfigError: If none does.
    """
    group = typer.main.get_command(cli.app)
    listed = [(name, command) for name, command in sorted(_flat(group, "")) if name.startswith(begin)]
    if not listed:
        raise ConfigError(f"commands: none begins with {as_found(begin)}; `fedshift --help` lists them")
    parts = [] if begin else [HEAD]
    for name, command in listed:
        context = typer.Context(command)
        parts.append(get_docs_for_click(obj=command, ctx=context, indent=1, name=f"fedshift {name}").strip())
    return "\n\n".join(parts) + "\n"


def _flat(group: click.Command, above: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its name, and the commands of a group with both names."""
    assert isinstance(group, click.Group)
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _flat(command, f"{above}{name} ")
        elif not command.hidden:
            yield above + name, command
