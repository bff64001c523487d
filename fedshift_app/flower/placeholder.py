"""A program in the place of one of Ray's agents: it does nothing, and ends with the process that started it.

Its argument is the id of the process that started Ray, with which it ends at the latest.
"""

import os
import sys
import time

SECONDS = 1.0  # between two looks


def wait(driver: int) -> None:
    """Wait for the end of the parent or of the driver."""
    parent = os.getppid()
    while os.getppid() == parent and is_there(driver):
        time.sleep(SECONDS)


def is_there(process: int) -> bool:
    """Tell whether a process exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    wait(int(sys.argv[1]))
