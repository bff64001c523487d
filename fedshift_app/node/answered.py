"""Over which nodes a node has helped to sum each weights and each array of its own: their difference is other nodes'.

Kept are the last ``MOST`` digests: of a real node in its state folder, over runs and restarts; of a simulated
one in ``context.state``, as long as its run goes on. The file is on the disk before a share leaves for the sum.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from fedshift_app.node import state_folder
from fedshift_core import atomic_io, private_files
from fedshift_core.errors import FedShiftError, RequestError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.secure.protocol import Once
from fedshift_core.wire.records import config_record

log = logging.getLogger("fedshift")

FILE = "answered"
MOST = 30_000  # digests that are remembered: a sum has one of its weights, and one of each contribution
DIGEST = 32  # bytes
_ENTRY = 2 * DIGEST  # of what was summed, and over whom
_RECORD, _SUMS = "answered", "sums"  # in ``context.state``


def once(context: Context) -> Once:
    """Return what notes for a node over whom things were summed, or finds one that was over others before."""
    folder = state_folder.own_folder(context.node_config)
    if folder is not None:
        return lambda summed, over: _on_disk(folder, summed, over)

    def in_memory(summed: Sequence[bytes], over: bytes) -> bytes | None:
        record: Any = config_record(context.state, _RECORD) or {}
        kept = record.get(_SUMS, b"")
        before, after = noted(kept, summed, over)
        if before is None:
            context.state[_RECORD] = ConfigRecord({_SUMS: after})
        return before

    return in_memory


def noted(kept: bytes, summed: Sequence[bytes], over: bytes) -> tuple[bytes | None, bytes]:
    """Return the first digest that was over other nodes before, None where there is none; and the entries with these.

    Args:
        kept: Entries, the oldest first.
        summed: Digests of what is summed.
        over: Digest of the nodes.
    """
    starts = range(0, len(kept), _ENTRY)
    known = {kept[start : start + DIGEST]: kept[start + DIGEST : start + _ENTRY] for start in starts}
    before = next((what for what in summed if known.get(what, over) != over), None)
    return before, (kept + b"".join(what + over for what in summed if what not in known))[-MOST * _ENTRY :]


def _on_disk(folder: Path, summed: Sequence[bytes], over: bytes) -> bytes | None:
    """Note sums in the file of a real node.

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
            before, after = noted(kept, summed, over)
            if before is None and after != kept:
                atomic_io.write_durably(path, after, private=True)
    except (OSError, FedShiftError) as error:
        log.warning("%s: %s", shown(path, WHOLE_PATH), error)
        raise RequestError("refused: this node's list of sums that it has answered cannot be kept") from None
    return before
