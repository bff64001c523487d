"""``--help``: five panels, two examples of each command that are taken, and options that may be keys."""

from collections.abc import Iterator

import click
import pytest
from doc_commands import COMMANDS, checked
from typer.testing import CliRunner

from fedshift import cli
from fedshift.cli import help_pages


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
        checked(example)


@pytest.mark.parametrize(
    ("words", "keys"),
    [("run handwritten --rounds 3", True), ("costs fedavg --nodes 4", True), ("compare runs --seed 0", False)],
)
def test_an_unknown_option_of_a_command_with_keys_says_how_they_are_typed(words: str, keys: bool) -> None:
    ended = CliRunner(env={"COLUMNS": "160", "TERMINAL_WIDTH": "160"}).invoke(cli.app, words.split())
    assert ended.exit_code == 2 and "No such option" in ended.output
    assert ("KEY=VALUE, without dashes" in ended.output) == keys
