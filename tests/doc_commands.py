"""Commands as the docs print them: parsed as a terminal would, their runs resolved and checked; nothing is run."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer

from fedshift import cli
from fedshift.lab.grid.costs.command import as_sweep
from fedshift.lab.grid.sweep import grid
from fedshift.lab.grid.tune import requested as tune_requested
from fedshift.lab.tables.papers import printed as printed_module
from fedshift.lab.tables.results.metrics import SCORES
from fedshift.lab.tables.results.settings import NODES
from fedshift.run.launch import runner
from fedshift_app.config import resolving as configuration
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.keys import as_requested, flat
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError, DataError

COMMANDS = typer.main.get_command(cli.app)
assert isinstance(COMMANDS, click.Group)
ENDS_A_COMMAND = {"|", "||", "&&", ">", "&", ";"}  # of a shell


def options(command: str) -> dict[str, Any]:
    """Parse a command as the terminal would and return its options and arguments; it is not run."""
    name, *words = shlex.split(command)
    if name not in COMMANDS.commands:
        raise click.UsageError(f"no command: {name}")
    return COMMANDS.commands[name].make_context(name, words).params


def settings(config: RunConfig, nodes: int) -> dict[str, Any]:
    """Return the settings of a run by dotted key, as a comparison reads them of a finished one."""
    return as_requested(flat(config.model_dump(mode="json"))) | {NODES: nodes}


def runs_of(command: str) -> list[dict[str, Any]]:
    """Return the settings by dotted key of each run that a command makes, resolved and checked.

    Raises:
        click.ClickException: If the terminal would refuse the command's options.
        FedShiftError: If a value is wrong.
    """
    name, given = shlex.split(command)[0], options(command)
    if paper := given.get("paper"):
        printed_module.get(paper)
    if name == "compare":
        assert given["score"].partition("=")[0] in (*SCORES, "bn")
    if name in ("run", "deploy-demo", "export"):
        flat_keys, launch = parse_arguments([*filter(None, [given.get("experiment")]), *given["arguments"]])
        if "resume" in launch:
            return []
        config = configuration.resolve(flat_keys)
        return [settings(config, runner.num_nodes(config, launch.get("nodes")))]
    if name == "tune":
        plans = tune_requested.read(given["arguments"]).plans
        return [{"method.name": plan.method} for plan in plans]
    if name in ("sweep", "costs"):
        words = as_sweep(given["arguments"]) if name == "costs" else given["arguments"]
        points, _ = grid.points(grid.read(words))
        return [settings(point.config, point.nodes) for point in points]
    return []


#: What stands for something of the reader's own: a folder, a method, parts that may be left out.
STANDS_FOR = re.compile(r"\.\.\.|^[\[<$]|^<|^(method=)?[A-Z]+$|=N$|\.yaml$|^N$|^resume=")
#: Not at hand in a test: weights of the reader's own, an extra or the example's package, which are not installed.
LACKING = re.compile(r"No such file or directory|reach .* on the Hub|is not installed|unknown method 'equal-domains'")


def checked(command: str) -> None:
    """Check a command as far as it is given: all of it, or the name and the options of one that is a pattern."""
    name, *words = shlex.split(command)
    if name.startswith("-"):
        assert name in {flag for param in COMMANDS.params for flag in param.opts} | {"--help", "--version"}, command
        return
    if name not in COMMANDS.commands:
        raise click.UsageError(f"no command: {name}")
    if not words or any(STANDS_FOR.search(word) for word in words):
        command_of = COMMANDS.commands[name]
        if isinstance(command_of, click.Group) and words:
            command_of = command_of.commands[words[0]]
        flags = {flag for param in command_of.params for flag in (*param.opts, *param.secondary_opts)}
        unknown = {word for word in words if word.startswith("--")} - flags
        assert not unknown or name == "supernode", command  # which hands Flower's own options on
        return
    try:
        runs_of(command)
    except click.MissingParameter:
        return  # within a sentence: the folder is not said again
    except (ConfigError, DataError) as error:
        if not LACKING.search(str(error)):
            raise


def printed(page: Path) -> Iterator[str]:
    """Yield each command on a page, without ``fedshift``."""
    seen = set()
    for line in typed(page):
        for command in _separate(line):
            if command not in seen:
                seen.add(command)
                yield command


def typed(page: Path) -> Iterator[str]:
    """Yield each line of a page that begins with ``fedshift``, in blocks and within lines, with what it goes on in."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)
    within = re.findall(r"(?<!`)`(fedshift [^`\n]+)`(?!`)", text)
    for block in (*blocks, *indented, *within):
        for line in block.replace("\\\n", " ").splitlines():
            if (text := re.sub(r"^\s*(\$ |- )?(run: )?", "", line)).startswith("fedshift "):
                yield text


def _separate(line: str) -> Iterator[str]:
    """Yield the commands of a line as the shell parts them, each without what is not ours."""
    words: list[str] = []
    for word in [*shlex.split(line, comments=True), ";"]:
        if word in ENDS_A_COMMAND:
            if words[:1] == ["fedshift"] and len(words) > 1:
                yield shlex.join(words[1:])
            words = []
        else:
            words.append(word)
