"""Over which nodes a node has helped to sum each shared weights: two sums that differ in one node tell of that node.

Kept are digests, of the last ``MOST`` sums: of a real node in its state folder, over runs and restarts; of a simulated
one in ``context.state``, as long as its run goes on. The file is on the disk before a share leaves for the sum.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from fedshift_app.node import state_folder
from fedshift_core import atomic_io, private_files
from fedshift_core.errors import FedShiftError, RequestError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.wire.records import config_record

log = logging.getLogger("fedshift")

FILE = "answered"
MOST = 10_000  # sums that are remembered
DIGEST = 32  # bytes
_ENTRY = 2 * DIGEST  # of what was summed, and over whom
_RECORD, _SUMS = "answered", "sums"  # in ``context.state``


def once(context: Context) -> Callable[[bytes, bytes], bool]:
    """Return what notes for a node over whom something was summed, and tells whether it was over nobody else before."""
    folder = state_folder.own_folder(context.node_config)
    if folder is not None:
        return lambda what, over: _on_disk(folder, what, over)

    def in_memory(what: bytes, over: bytes) -> bool:
        kept: Any = config_record(context.state, _RECORD) or {}
        after = noted(kept.get(_SUMS, b""), what, over)
        if after is not None:
            context.state[_RECORD] = ConfigRecord({_SUMS: after})
        return after is not None

    return in_memory


def noted(kept: bytes, what: bytes, over: bytes) -> bytes | None:
    """Return the entries with this one, which may be among them; None where it was over others.

    Args:
        kept: Entries, the oldest first.
        what: Digest of what is summed.
        over: Digest of the nodes.
    """
    for start in range(0, len(kept), _ENTRY):
        if kept[start : start + DIGEST] == what:
            return kept if kept[start + DIGEST : start + _ENTRY] == over else None
    return (kept + what + over)[-MOST * _ENTRY :]


def _on_disk(folder: Path, what: bytes, over: bytes) -> bool:
    """Note a sum in the file of a real node.

    Raises:
        FedShiftError: If it cannot be read or written; which file, the node's own log says alone.
    """
    path = folder / FILE
    try:
        private_files.make_folder(folder)
        with private_files.locked(path.with_suffix(".lock")):
            kept = path.read_bytes() if path.exists() else b""
            if len(kept) % _ENTRY:
                raise FedShiftError("it is not what was written; restore it")
            after = noted(kept, what, over)
            if after is not None and after != kept:
                atomic_io.write_durably(path, after, private=True)
    except (OSError, FedShiftError) as error:
        log.warning("%s: %s", shown(path, WHOLE_PATH), error)
        raise RequestError("refused: this node's list of sums that it has answered cannot be kept") from None
    return after is not None
