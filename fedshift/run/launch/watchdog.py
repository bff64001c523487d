"""The program of ``processes.Watchdog``: waits for the end of a pipe, then ends leftover processes."""

import shutil
import signal
import sys
from pathlib import Path

from fedshift.run.launch import processes


def watch(variable: str, value: str, folder: Path | None) -> None:
    """Wait until standard input ends; end all with ``variable=value`` unless it said that all is done."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == processes.ALL_DONE:
        return
    processes.stop_marked(variable, value)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch(sys.argv[1], sys.argv[2], Path(sys.argv[3]) if sys.argv[3:] else None)
