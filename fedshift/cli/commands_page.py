"""The page of all commands, their arguments and options: ``fedshift commands``."""

from collections.abc import Iterator

import click
import typer

from fedshift import cli
from fedshift_app.config import registry
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

HEAD = """\
# Commands

This page is what `fedshift commands` prints. In a terminal `--help` after a command shows its part.

Exit codes are on [a page of their own](exit-codes.md); keys of the configuration in [keys](keys.md)."""
#: What an option's value is called, where its type has a name of its own.
VALUES = {"typed_path": "PATH", "integer": "N", "integer range": "N", "float": "X", "float range": "X"}


def markdown(begin: str = "") -> str:
    """Return the page of commands, or of those whose names begin so.

    Raises:
        ConfigError: If none does.
    """
    group = typer.main.get_command(cli.app)
    listed = [(name, command) for name, command in sorted(_flat(group, "")) if name.startswith(begin)]
    if not listed:
        raise ConfigError(f"commands: none begins with {as_found(begin)}; `fedshift --help` lists them")
    parts = ([] if begin else [HEAD]) + ["\n".join(_command(*each)) for each in listed]
    return "\n\n".join(parts) + "\n"


def _flat(group: click.Command, above: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its name, and the commands of a group with both names."""
    assert isinstance(group, click.Group)
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _flat(command, f"{above}{name} ")
        elif not command.hidden:
            yield above + name, command


def _command(name: str, command: click.Command) -> Iterator[str]:
    """Yield the lines of a command: its help, its arguments and its options."""
    first, *more = (paragraph.strip() for paragraph in (command.help or "").split("\n\n"))
    yield from (f"## fedshift {name}", "", " ".join(first.split()))
    if more:
        yield from ("", "```text", *"\n\n".join(more).splitlines(), "```")
    if command.epilog:
        yield from ("", *(f"    {example}" for example in command.epilog.split("\n\n")[1:]))
    if rows := [_parameter(param) for param in command.params]:
        yield from ("", registry.table(("argument or option", "default", "meaning"), rows))


def _parameter(param: click.Parameter) -> tuple[str, str, str]:
    """Return the row of an argument or an option."""
    meaning = (getattr(param, "help", "") or "").replace("\n", " ")
    if param.param_type_name == "argument":
        return f"`{param.metavar or (param.name or '').upper()}`", "", meaning
    flag = bool(getattr(param, "is_flag", False))
    value = "" if flag else f" {param.metavar or VALUES.get(param.type.name, param.type.name.upper())}"
    spelled = ", ".join(f"`{flag_name}{value}`" for flag_name in (*param.opts, *param.secondary_opts))
    default = "" if flag or callable(param.default) or param.default in (None, "", ()) else f"`{param.default}`"
    return spelled, "required" if param.required else default, meaning
