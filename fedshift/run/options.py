"""Makes commands of functions: a signature is declared once, for the terminal and for Python.

What stands before ``*`` in the signature is an argument, what stands after it an option; a truth value is a flag, a
path is checked. ``Args`` of the docstring are the help, in brackets how the parameter is typed where its name does not
say so (``into (--in FOLDER)``), and ``Examples`` are shown below.
"""

import inspect
import os
import re
import textwrap
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import click
import typer
from click.core import ParameterSource

from fedshift_core.errors import ConfigError
from fedshift_core.paths import typed_path

F = TypeVar("F", bound=Callable[..., Any])

_SECTION = re.compile(r"^(Args|Raises|Examples):\n((?:    .*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+)(?: \((.*?)\))?: (.*(?:\n    .*)*)", re.MULTILINE)


class Bounds(NamedTuple):
    """The least and the largest number that an option takes."""

    min: int
    max: int | None = None


def command(
    app: typer.Typer, name: str = "", *, of: Callable[..., Any] | None = None, to: str = "", **settings: Any
) -> Callable[[F], F]:
    """Return the decorator that makes a command of a function and leaves the function as it is.

    Args:
        app: Where the command is.
        name: Its name; empty for that of the function.
        of: A function of the Python interface whose options the command has, too, as its ``**`` parameter.
        to: ``MODULE:FUNCTION`` that does its work, imported when the command is called; it gets the same parameters. A
            text that it returns is printed, a number is the exit code. The decorated function then only declares.
        settings: As typer has them.
    """

    def declared(function: F) -> F:
        doc, own, others = Doc(function), inspect.signature(function).parameters, dict[str, inspect.Parameter]()
        if of is not None:
            others, doc.said = dict(inspect.signature(of).parameters), Doc(of).said | doc.said
        given = [each for each in own.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
        given += [each for each in (*others.values(), *own.values()) if each.kind is each.KEYWORD_ONLY]

        def called(**values: Any) -> None:
            module, _, work = to.partition(":")
            done = getattr(import_module(module), work)(**values) if to else function(**values)
            if isinstance(done, str):
                typer.echo(done)
            elif isinstance(done, int):
                raise SystemExit(done)

        called.__name__, called.__annotations__ = function.__name__, {}
        setattr(called, "__signature__", inspect.Signature([_parameter(each, doc) for each in given]))  # noqa: B010
        epilog = "\n\n".join(["Examples:", *doc.examples]) if doc.examples else None
        app.command(name or None, help=doc.text, epilog=epilog, **settings)(called)
        return function

    return declared


class Doc:
    """A docstring: its text, how each parameter is typed with what it is, and the examples."""

    def __init__(self, function: Callable[..., Any]) -> None:
        doc = inspect.cleandoc(function.__doc__ or "") + "\n"
        sections = {found[1]: textwrap.dedent(found[2]) for found in _SECTION.finditer(doc)}
        self.text = _SECTION.sub("", doc).strip()
        entries = _ENTRY.finditer(sections.get("Args", ""))
        self.said = {found[1]: (found[2] or "", " ".join(found[3].split())) for found in entries}
        self.examples = re.sub(r"\n +", " ", sections.get("Examples", "")).split("\n")[:-1]


def _parameter(given: inspect.Parameter, doc: Doc) -> inspect.Parameter:
    """Return a parameter as typer declares it."""
    kind: Any = given.annotation
    if kind is typer.Context:
        return given
    kind, *more = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    typed, help = doc.said[given.name]
    flags = re.findall(r"-[^\s,]+", typed) if typed.startswith("-") else []
    settings: dict[str, Any] = {"help": help, "metavar": re.sub(r"^(-[^\s,]+,? ?)+", "", typed) or None}
    for each in more:
        settings |= each._asdict() if isinstance(each, Bounds) else {"autocompletion": each}
    inner = [part for each in get_args(kind) for part in (get_origin(each), *get_args(each))]
    if {Path, os.PathLike} & {kind, *get_args(kind), *inner}:
        settings["parser"] = typed_path
        kind = list[Path] | None if list in (get_origin(kind), *inner) else Path | None
    if given.kind is given.KEYWORD_ONLY:
        if kind == Path | None:
            settings["metavar"] = settings["metavar"] or "PATH"
        info: Any = typer.Option(*flags or [f"--{given.name.removeprefix('as_').replace('_', '-')}"], **settings)
    else:
        info = typer.Argument(**settings)
    return given.replace(annotation=Annotated[kind, info], kind=given.KEYWORD_ONLY)


def form_of(**chosen: object) -> str:
    """Return in which form something is printed: ``text``, or the one that was chosen.

    Raises:
        ConfigError: If there are several.
    """
    forms = [form for form, given in chosen.items() if given]
    if len(forms) > 1:
        raise ConfigError(f"give --{forms[-1]} or --{forms[0]}, not both")
    return forms[0] if forms else "text"


def check_alone(option: str, why: str, but: Collection[str] = ()) -> None:
    """Refuse what was typed next to an option that does not go with it.

    Args:
        option: The option.
        why: The reason, for the message.
        but: Parameters that do go with it.

    Raises:
        ConfigError: With the first of the others.
    """
    context = click.get_current_context()
    for param in context.command.params:
        typed = context.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
        if typed and param.opts[0] != option and param.name not in but:
            raise ConfigError(f"{option} and {param.opts[-1]}: {why}; give one of the two")
