"""What is passed on of `flwr run --stream`: Flower's misleading lines are not, and colours only where they belong."""

import io
import os
import sys
from pathlib import Path

from fedshift.run.launch import log_filter


def test_both_streams_of_a_program_are_cleaned_and_its_exit_code_is_returned(tmp_path: Path) -> None:
    program = "import sys; print('\\x1b[92mout\\x1b[0m'); print('\\x1b[91merr\\x1b[0m', file=sys.stderr); sys.exit(7)"
    out, err = io.StringIO(), io.StringIO()
    assert log_filter.call([sys.executable, "-c", program], tmp_path, os.environ, out, err) == 7
    assert (out.getvalue(), err.getvalue()) == ("out\n", "err\n")
