"""How the C library of a node's process deals with memory."""

import ctypes
import functools
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's mallopt
KEPT_BYTES = 1 << 30


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep up to a gigabyte of freed memory. It is not given back to the system at once.

    Each training step frees and asks for the same maps; fresh pages from the system cost up to a tenth of a step
    (docs/results/performance.md). Only glibc has these two settings; elsewhere nothing happens.
    """
    _mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
    _mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


@functools.cache
def one_arena() -> None:
    """Let threads that come share the first thread's memory: others of glibc's are too small to keep large maps."""
    _mallopt(M_ARENA_MAX, 1)


def _mallopt(option: int, value: int) -> None:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is not None and hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(option, value)
