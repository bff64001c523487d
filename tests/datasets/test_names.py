"""Names of files that anybody may have given them: shown so that no terminal obeys them, and taken as they are."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedshift import cli
from fedshift_core.limits import shown

#: ESC with a colour and a title, a line's end, a byte that is no UTF-8, a mark that turns the direction.
EVIL = os.fsdecode(b"a\x1b[31m\x1b]0;t\x07\nb\xff\xe2\x80\xae")
SAFE = r"a\x1b[31m\x1b]0;t\x07\nb\xff\u202e"


def check(message: str, lines: int = 1) -> None:
    """Check that a message may be printed by any terminal and names the file."""
    assert SAFE in message
    assert all(line.isprintable() for line in message.split("\n")) and message.count("\n") < lines
    message.encode()


# --- shown


@given(name=st.binary(max_size=400), most=st.integers(10, 400))
def test_any_name_is_printable_bounded_and_the_same_when_shown_again(name: bytes, most: int) -> None:
    text = shown(os.fsdecode(name), most)
    assert text.isprintable() and len(text) <= most
    assert shown(text, most) == text


# --- messages


def folder_of(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).mkdir(parents=True)
    return path


# --- use


def test_the_command_prints_an_error_and_a_place_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedshift", "prepare", "pacs", f"data-dir={tmp_path / EVIL}"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    check(capfd.readouterr().err.rstrip("\n"))
    target = folder_of(tmp_path, EVIL) / EVIL / "x.png"
    done = CliRunner().invoke(cli.app, ["preview", "handwritten", "--domains", "scan", "-o", str(target)])
    assert done.exit_code == 0, done.output
    assert target.is_file()
    check(done.stdout.rstrip("\n"))
