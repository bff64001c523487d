"""The panels of ``--help``, and an answer to options that are really keys."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import click
from typer.core import TyperGroup

#: The panels of ``fedshift --help`` in their order, each with its commands in theirs.
PANELS: Mapping[str, Sequence[str]] = {
    "Run": ("run", "sweep", "tune", "rescore", "evaluate", "status"),
    "Compare": ("compare", "claims", "report", "costs"),
    "Your data and methods": ("init", "get", "prepare", "preview", "cache", "new-method", "new-plugin"),
    "Deploy": (
        "deploy-demo", "export", "superlink", "supernode", "credentials", "policy", "site", "save", "save-node",
        "predict", "withdraw",
    ),
    "Look up": (
        "methods", "experiments", "datasets", "models", "adaptations", "modules", "papers", "cite", "keys", "commands",
        "doctor", "app-dir", "version",
    ),
}  # fmt: skip
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


_ANY, _DATASET = lambda of, key: True, lambda of, key: key == "data-dir" or key.startswith("dataset.")
#: Which keys of a run a command takes as ``KEY=VALUE``, by the module that refuses the others; most take none.
TAKES: Mapping[str, tuple[str, Callable[[Any, str], bool]]] = {
    "run": ("typing", _ANY), "sweep": ("typing", _ANY), "tune": ("typing", _ANY),
    "rescore": ("fedshift.lab.grid.rescore.keys", lambda of, key: key in of.OWN or of.may_differ(key)),
    "evaluate": ("fedshift.lab.grid.evaluate.keys", lambda of, key: of.allowed(key)),
    "costs": ("fedshift.lab.grid.costs.command", lambda of, key: key not in of.REFUSED),
    "deploy-demo": ("fedshift.site.deploy.demo", lambda of, key: key not in of.REFUSED),
    "export": ("fedshift_app.config.arguments", lambda of, key: key == "nodes" or key not in of.LAUNCH_KEYS),
    "init": ("fedshift.data.init", lambda of, key: key in ("data-dir", *of.TAKEN)),
    "prepare": ("typing", _DATASET), "preview": ("typing", _DATASET),  # of an experiment also others
    "report": ("typing", lambda of, key: key == "data-dir"), "status": ("typing", lambda of, key: key == "output-dir"),
}  # fmt: skip


class Commands(TyperGroup):
    """The commands in the order of their panels; an option that is really a key is answered with the key."""

    def __init__(self, **settings: Any) -> None:
        """Put each command into its panel, in order."""
        super().__init__(**settings)
        self.commands = {name: self.commands[name] for name in (*PANEL_OF, *self.commands) if name in self.commands}
        for name, command in self.commands.items():
            setattr(command, "rich_help_panel", PANEL_OF.get(name))  # noqa: B010 (typer's, of commands and groups)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command; say which key a wrong option is."""
        command, *typed = [*ctx._protected_args, *ctx.args] or [""]  # the parser empties the lists
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if not (said := hint(command, error.option_name, typed)):
                raise
            known = f"{error.message.rstrip('.')}. {said}"
            raise click.NoSuchOption(error.option_name, known, None, error.ctx) from None


def hint(command: str, option: str, typed: Sequence[str]) -> str:
    """Return the key that an unknown option is, as it is typed; empty where it is none that the command takes.

    Args:
        command: Its first word, such as ``run``.
        option: Such as ``--rounds``.
        typed: The arguments of the command.
    """
    module, takes = TAKES.get(command, ("", None))
    if takes is None or not (key := next(filter(partial(takes, import_module(module)), _keys(option.lstrip("-"))), "")):
        return ""
    values = {word.partition("=")[0]: word.partition("=")[2] for word in typed if "=" in word}
    value = values.get(option, "")
    if option in typed and typed.index(option) + 1 < len(typed):
        value = typed[typed.index(option) + 1]
    return f"It is a key: use {key}={value or 'VALUE'}"


def _keys(word: str) -> Iterator[str]:
    """Yield the keys of a run that a word may be, whole or by its last part."""
    from fedshift_app.config import dotted_keys  # here: pydantic, which a right call may do without
    from fedshift_app.config.arguments import LAUNCH_KEYS
    from fedshift_app.config.resolving import FLAT_KEYS

    flat, dotted = word.replace("_", "-"), word.replace("-", "_")
    if flat in (*FLAT_KEYS, *LAUNCH_KEYS):
        yield flat
    yield from (key for key in dotted_keys.known() if dotted in (key, key.rpartition(".")[2]))
