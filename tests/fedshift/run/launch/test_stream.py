"""What is passed on of `flwr run --stream`: Flower's misleading lines are not, and colours only where they belong."""

import os
import sys
from pathlib import Path

import pytest

from fedshift.run.launch import log_filter

GREEN, YELLOW, RESET = "\x1b[92m", "\x1b[93m", "\x1b[0m"


@pytest.mark.parametrize(
    ("line", "bare"),
    [
        (f"{YELLOW}WARNING {RESET}:   Since flwr 1.32, default simulated SuperNodes changed from 10 to 2.\n", None),
        (f"{GREEN}INFO {RESET}:      To change federation size, use the following command:\n", None),
        (
            f"{GREEN}INFO {RESET}:      \tflwr federation simulation-config @none/x <superlink> --num-supernodes <N>\n",
            None,
        ),
        (f"{GREEN}INFO {RESET}:      Starting Flower Simulation\n", "INFO :      Starting Flower Simulation\n"),
        ("round 1/2  scan 10.0\n", "round 1/2  scan 10.0\n"),
        ("\x1b]0;title\x07\x1b[2K\x1b[1;32mbold\x1b[m", "bold"),
        # Ours, or an app's: only Flower's own lines are left out.
        ("see flwr federation simulation-config\n", "see flwr federation simulation-config\n"),
        ("\x1b[92mINFO \x1b[0m:      \n", None),
    ],
)
def test_a_line(line: str, bare: str | None) -> None:
    assert log_filter.cleaned(line, colour=False) == bare
    assert log_filter.cleaned(line, colour=True) == (None if bare is None else line)


def test_both_streams_of_a_program_are_cleaned_and_its_exit_code_is_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; print('\\x1b[92mout\\x1b[0m'); print('\\x1b[91merr\\x1b[0m', file=sys.stderr); sys.exit(7)"
    assert log_filter.call([sys.executable, "-c", program], tmp_path, os.environ) == 7
    assert capsys.readouterr() == ("out\n", "err\n")
