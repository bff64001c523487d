"""Holds back what a library logs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_least(level: int, name: str) -> Iterator[None]:
    """Let only lines of a level and above pass from a logger, until the block is left.

    Args:
        level: Of :mod:`logging`.
        name: The logger's.
    """
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
