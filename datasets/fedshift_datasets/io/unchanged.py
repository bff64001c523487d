"""Remembers what a folder held, for as long as no folder in it has changed.

A start lists each site a dozen times: for its names, its splits, its fingerprint. Of 200,000 images that takes minutes.
A folder's time of change tells of every entry that came, went or got another name; what is in a file is not remembered.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

MOST = 1024  # remembered answers of a process, one for each site
#: Nanoseconds that a folder must be unchanged before it is looked at: two changes within a clock's step look like one.
SETTLED = 2_000_000_000

#: The folders that an answer is of, with their times of change.
Times = tuple[tuple[Path, int], ...]

Answer = TypeVar("Answer")

_known: OrderedDict[Hashable, tuple[Times, Any]] = OrderedDict()


def answer(
    key: Hashable,
    look: Callable[[], Answer],
    folders: Callable[[Answer], Sequence[Path] | None],
    still: Callable[[Answer], bool] = lambda _: True,
) -> Answer:
    """Return what ``look`` returns, or returned before if no folder has changed since.

    Args:
        key: What is asked.
        look: Finds the answer.
        folders: Returns the folders that decide an answer; None if it is not to be remembered.
        still: Tells whether a remembered answer is right, as far as more than folders decides it.
    """
    if (known := _known.get(key)) is not None:
        if times([path for path, _ in known[0]]) == known[0] and still(known[1]):
            _known.move_to_end(key)
            found: Answer = known[1]
            return found
        del _known[key]
    began = time.time_ns()
    found_now = look()
    places = folders(found_now)
    now = None if places is None else times(places)
    # A folder that has changed since shortly before the look may have changed during it.
    if now is not None and max(changed for _, changed in now) < began - SETTLED:
        _known[key] = now, found_now
        if len(_known) > MOST:
            _known.popitem(last=False)
    return found_now


def times(paths: Sequence[Path]) -> Times | None:
    """Return the times of change of folders; None if one is not there."""
    try:
        return tuple((path, path.stat().st_mtime_ns) for path in paths)
    except OSError:
        return None
