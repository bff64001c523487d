"""A signature and its docstring are a command: arguments, options, flags, bounds, paths, and options of another."""

from pathlib import Path
from typing import Annotated, Any

import typer
from support import refusal_of
from typer.testing import CliRunner

from fedshift.run.options import Bounds, check_alone, command, form_of
from fedshift_core.errors import ConfigError

app = typer.Typer()
got: dict[str, Any] = {}


def of(rows: str, *, held_out: bool = False, costs: Path | None = None) -> None:
    """Do as Python.

    Args:
        rows: Anything.
        held_out (--unseen): Held-out
            rows alone.
        costs: A file.
    """


@command(app, of=of)
def draw(
    names: list[str], *, output: Path = Path("a.png"), per_class: Annotated[int, Bounds(1, 20)] = 2,
    as_json: bool = False, **more: Any,
) -> None:  # fmt: skip
    """Draw samples.

    Any number.

    Args:
        names (NAME ...): What is drawn.
        output (-o, --output FILE): The file.
        per_class: How many.
        as_json: JSON.
        more: Of Python.

    Examples:
        fedshift draw a
        fedshift draw a
            -o b.png
    """
    if as_json:
        check_alone("--json", "it has none", but=("names",))
    got.update(names=names, output=output, per_class=per_class, as_json=as_json, **more)


@command(app)
def other() -> None:
    """Do nothing."""


def ended(*words: str) -> Any:
    return CliRunner(env={"COLUMNS": "160", "TERMINAL_WIDTH": "160"}).invoke(app, words)


def test_a_signature_is_a_command() -> None:
    assert ended("draw", "a", "b", "-o", "~/b.png", "--per-class", "20", "--unseen", "--costs", "c").exit_code == 0
    assert got == {"names": ["a", "b"], "output": Path.home() / "b.png", "per_class": 20, "as_json": False,
                   "held_out": True, "costs": Path("c")}  # fmt: skip
    assert ended("draw", "a", "--per-class", "21").exit_code == ended("draw", "a", "--no-json").exit_code == 2
    assert ended("draw").exit_code == 2 and ended("other").exit_code == 0


def test_what_does_not_go_together_is_refused() -> None:
    assert str(ended("draw", "a", "--json", "--unseen").exception) == (
        "--json and --unseen: it has none; give one of the two"
    )
    assert ended("draw", "a", "--json").exit_code == 0
    assert refusal_of(ConfigError, form_of, markdown=True, latex="-") == "give --latex or --markdown, not both"
    assert form_of(markdown=False, json="") == "text" and form_of(json=True) == "json"
