"""The program of ``processes.Watchdog``: waits for the end of a pipe, and ends what is left then."""

import shutil
import signal
import sys
from pathlib import Path

from fedshift.launch import processes


def watch(variable: str, value: str, folder: Path | None) -> None:
    """Wait until standard input ends; unless it says that all is done, end all with ``variable=value``."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == processes.ALL_DONE:
        return
    processes.stop_marked(variable, value)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    watch(sys.argv[1], sys.argv[2], Path(sys.argv[3]) if sys.argv[3:] else None)
