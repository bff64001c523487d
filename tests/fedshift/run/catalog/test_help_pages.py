"""``--help``: five panels, two examples of each command that are taken, and options that may be keys."""

import shlex
from collections.abc import Iterator

import click
import pytest
from doc_commands import COMMANDS, runs_of
from typer.testing import CliRunner

from fedshift import cli
from fedshift.cli import help_pages
from fedshift_app.config import dotted_keys
from fedshift_app.config.arguments import LAUNCH_KEYS
from fedshift_app.config.resolving import FLAT_KEYS

#: Words of an example that stand for something of the reader's own.
STANDS_FOR = ("FOLDER", "MODEL", "NODE", "DIR", "HOST", "PACS", "MY_IMAGES", "mine", "runs")


def leaves(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its full name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{above}{name} ")
        elif not command.hidden:
            yield above + name, command


LEAVES = dict(leaves(COMMANDS))
EXAMPLES = {
    name: [line.removeprefix("fedshift ") for line in (command.epilog or "").split("\n\n")[1:]]
    for name, command in LEAVES.items()
}


def shown(*words: str) -> str:
    """Return the help of a command at a width at which nothing wraps."""
    return CliRunner(env={"COLUMNS": "160", "TERMINAL_WIDTH": "160"}).invoke(cli.app, [*words, "--help"]).output


def test_all_commands_are_in_five_panels_in_their_order() -> None:
    assert len(help_pages.PANELS) == 5
    assert set(COMMANDS.commands) == set(help_pages.PANEL_OF), "each command has a panel: fedshift/cli/help_pages.py"
    text = shown()
    places = [text.index(f"─ {panel} ─") for panel in help_pages.PANELS]
    assert places == sorted(places) and "─ Commands ─" not in text


@pytest.mark.parametrize("name", LEAVES)
def test_a_command_has_two_examples_that_are_taken(name: str) -> None:
    examples = EXAMPLES[name]
    text = shown(*name.split())
    assert len(set(examples)) == 2 and any(example.startswith(name) for example in examples)
    for example in examples:
        assert f"fedshift {example}" in text and "[" not in example
        taken(example)


def taken(example: str) -> None:
    """Check the options of an example and, where it stands for nothing of the reader's own, its keys and values."""
    first, *words = shlex.split(example)
    command = COMMANDS.commands[first]
    if isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    if any(part.startswith(STANDS_FOR) for word in words for part in word.split("=", 1)):
        flags = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        unknown = {word for word in words if word.startswith("-")} - flags
        assert not unknown or first == "supernode", example  # which hands Flower's own options on
        names = {name for name, equals, _ in (word.partition("=") for word in words) if equals} - {"domain", "data-dir"}
        assert names <= {*FLAT_KEYS, *LAUNCH_KEYS, *dotted_keys.known(), *OWN}, example
    else:
        command.make_context(first, words)
        runs_of(example) if first in ("run", "sweep", "costs", "export", "deploy-demo", "tune") else None


#: Keys of commands that are no keys of a run.
OWN = ("images", "node", "nodes", "sums", "key", "sign")


@pytest.mark.parametrize(
    ("words", "keys"),
    [("run handwritten --rounds 3", True), ("costs fedavg --nodes 4", True), ("compare runs --seed 0", False)],
)
def test_an_unknown_option_of_a_command_with_keys_says_how_they_are_typed(words: str, keys: bool) -> None:
    ended = CliRunner(env={"COLUMNS": "160", "TERMINAL_WIDTH": "160"}).invoke(cli.app, words.split())
    assert ended.exit_code == 2 and "No such option" in ended.output
    assert ("KEY=VALUE, without dashes" in ended.output) == keys
