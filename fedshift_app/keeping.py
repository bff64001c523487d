"""What a real node remembers, on its own disk: Flower keeps ``context.state`` in the SuperNode's memory only.

A node's private parts (a personal head, BatchNorm, a style encoder) must outlive its SuperNode's process. They
are written after each training, beside ``context.state``, and read where that is empty.
"""

import hashlib
import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from clients.base import Arrays
from datasets.errors import FedShiftError
from fedshift_app.holdings import Place

#: Environment variable: where nodes keep what they remember.
STATE_DIR = "FEDSHIFT_STATE"
KEEP_RUNS = 3  # of each node; older ones are removed


def state_dir() -> Path:
    """Return ``$FEDSHIFT_STATE``, or ``~/.local/state/fedshift``."""
    named = os.environ.get(STATE_DIR, "")
    return Path(named).expanduser() if named else Path.home() / ".local" / "state" / "fedshift"


def remember(where: Place, run_id: int, memory: Arrays) -> None:
    """Write a node's memory of a run; nothing is written where there is nothing to remember.

    Raises:
        FedShiftError: If it cannot be written: private parts must not be lost unnoticed.
    """
    if not memory:
        return
    target = _file(where, run_id)
    part = target.with_suffix(".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(memory, part)
        part.replace(target)
        for old in sorted(target.parent.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)[:-KEEP_RUNS]:
            old.unlink()
    except OSError as error:
        raise FedShiftError(f"cannot keep this node's private parts in {target.parent}: {error.strerror}") from None


def recall(where: Place, run_id: int) -> Arrays:
    """Return what :func:`remember` wrote for this node and run, or nothing.

    Raises:
        FedShiftError: If the file cannot be read: to go on without would silently start anew.
    """
    source = _file(where, run_id)
    if not source.is_file():
        return {}
    try:
        arrays: Arrays = load_file(source)
    except (OSError, SafetensorError) as error:
        raise FedShiftError(
            f"cannot read this node's private parts from {source}: {error}; remove it to start them anew"
        ) from None
    return arrays


def _file(where: Place, run_id: int) -> Path:
    """Return the file of a node and run: by its number, or by its domain and folder where it was given none."""
    folder = hashlib.sha256(str(where.source.data_dir).encode()).hexdigest()[:12]
    name = f"node-{where.partition_id}" if where.partition_id >= 0 else f"{where.domain}-{folder}"
    return state_dir() / name / f"run-{run_id}.safetensors"
