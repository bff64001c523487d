"""Filters the output of `flwr run --stream`: no colours in pipes and files, no misleading or repeated lines."""

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from fedshift_app.run.console import coloured
from fedshift_core.env import ALL_WRITTEN, LIVE

#: Control sequences of terminals (ECMA-48): colours, the cursor, the title of the window.
ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
#: Lines of Flower's that do not apply to this run, whose nodes ``fedshift run`` has counted.
MISLEADING = (
    "default simulated SuperNodes changed from 10 to 2",
    "To change federation size, use the following command:",
    "flwr federation simulation-config",
)

_ROUND = re.compile(r"round +\d+/\d+  ")  # the line of a round (``console.round_line``)


def cleaned(line: str, *, colour: bool) -> str | None:
    """Return a line as it is shown; None for a misleading or empty one of Flower's, and for the sign of the run's end.

    A line of a round is not shown either where the rounds have a display of their own.

    Args:
        line: With the end of the line, if it has one.
        colour: Keep control sequences.
    """
    bare = ANSI.sub("", line)
    level, _, text = bare.partition(":")  # so begins each line of Flower's logger
    needless = not text.strip() or any(part in bare for part in MISLEADING)
    if (
        is_end(bare)
        or (logging.getLevelNamesMapping().get(level.strip()) and needless)
        or (os.environ.get(LIVE) and _ROUND.match(bare))
    ):
        return None
    return line if colour else bare


def is_end(line: str) -> bool:
    """Tell whether a line says that the ServerApp has written all it had to."""
    return line.strip() == ALL_WRITTEN


def call(
    command: Sequence[str], folder: Path, env: Mapping[str, str], out: TextIO | None = None, *, early: bool = False
) -> int:
    """Run a program to its end, print its cleaned lines, and return its exit code.

    Args:
        command: The program, with its arguments.
        folder: Where it runs.
        env: Its environment.
        out: Where its lines go; None for standard output and error.
        early: End it when the ServerApp has written all; the exit code is then 0.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**env, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors_thread = threading.Thread(target=_pass_on, args=(process.stderr, out or sys.stderr), daemon=True)
    with process.stdout, process.stderr:
        errors_thread.start()
        try:
            return 0 if _pass_on(process.stdout, out or sys.stdout, early=early) else process.wait()
        finally:  # as subprocess.run does
            process.kill()
            process.wait()
            errors_thread.join()


def _pass_on(lines: Iterable[str], to: TextIO, *, early: bool = False) -> bool:
    """Pass lines on; return whether it was left ``early``, with the sign of the run's end."""
    colour = coloured(to)
    for line in lines:
        if early and is_end(line):
            return True
        shown = cleaned(line, colour=colour)
        if shown is not None:
            to.write(shown)
            to.flush()
    return False
