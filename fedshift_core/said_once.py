"""Warns of something once: in a process, and in all processes of a command that shares what was said."""

import contextlib
import functools
import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedshift_core.env import SAID

log = logging.getLogger("fedshift")
_said: set[str] = set()  # what this process has warned of


def warn(text: str, about: str = "") -> None:
    """Log a warning, unless this process or another one of the same command has done so.

    Args:
        text: The warning.
        about: What it is about, of which there is one warning; empty for the text itself.
    """
    about = about or text
    before, new = about in _said, _is_new(about)
    _said.add(about)
    if new and not before:
        log.warning("%s", text)


def _is_new(about: str) -> bool:
    """Mark a warning for all processes of the command, and tell whether none of them has marked it."""
    if not (folder := os.environ.get(SAID)):
        return True
    mark = hashlib.sha256(about.encode(errors="surrogateescape")).hexdigest()
    try:
        Path(folder, mark).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # a full disk: better twice than never
        pass
    return True


@contextlib.contextmanager
def shared() -> Iterator[None]:
    """Within this block, processes that are started do not repeat what another one of them has said.

    On a machine without a place for a temporary folder each process says it by itself.
    """
    if SAID in os.environ:
        yield
        return
    with contextlib.suppress(OSError):
        os.environ[SAID] = _folder().name
    try:
        yield
    finally:
        os.environ.pop(SAID, None)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes with this process: those that it forks workers from outlive a run."""
    return tempfile.TemporaryDirectory(prefix="fedshift-")
