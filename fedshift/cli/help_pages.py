"""The panels of ``--help``, and an answer to options that may be keys."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
from typer.core import TyperGroup

#: The panels of ``fedshift --help`` in their order, each with its commands in theirs.
PANELS: Mapping[str, Sequence[str]] = {
    "Run": ("run", "sweep", "tune", "rescore", "evaluate", "status"),
    "Compare": ("compare", "claims", "report", "costs"),
    "Your data and methods": ("init", "get", "prepare", "preview", "cache", "new-method", "new-plugin"),
    "Deploy": (
        "deploy-demo",
        "export",
        "superlink",
        "supernode",
        "credentials",
        "policy",
        "site",
        "save",
        "save-node",
        "predict",
        "withdraw",
    ),
    "Look up": (
        "methods",
        "experiments",
        "datasets",
        "models",
        "adaptations",
        "modules",
        "papers",
        "cite",
        "keys",
        "commands",
        "doctor",
        "app-dir",
        "version",
    ),
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


class Commands(TyperGroup):
    """The commands in the order of their panels."""

    def __init__(self, **settings: Any) -> None:
        """Put each command into its panel, in order."""
        super().__init__(**settings)
        self.commands = {name: self.commands[name] for name in (*PANEL_OF, *self.commands) if name in self.commands}
        for name, command in self.commands.items():
            setattr(command, "rich_help_panel", PANEL_OF.get(name))  # noqa: B010 (typer's, of commands and groups)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command; where it takes keys, say of a wrong option how they are typed."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            params = error.ctx.command.params if error.ctx else ()
            if not any("=" in str(param.metavar) for param in params):
                raise
            said = "Keys are typed as KEY=VALUE, without dashes: `fedshift keys` lists them"
            raise click.NoSuchOption(
                error.option_name, f"{error.message.rstrip('.')}. {said}", None, error.ctx
            ) from None
