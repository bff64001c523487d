"""Keeps what a method has of single nodes in files of their own, next to the checkpoints: ``nodes/00003.safetensors``.

Fed3R and FedCGS keep each node's sums there, so that a node can be taken out of the model (``fedshift withdraw``). With
secure sums nobody has them.
"""

from pathlib import Path

from fedshift_core import atomic_io, private_files
from fedshift_core.arrays import Arrays

FILE = "nodes/{:05d}.safetensors"  # in the run folder, by the index of the node


def write(run: Path, index: int, arrays: Arrays) -> None:
    """Keep arrays of a node in a run folder, for its owner's eyes alone.

    Raises:
        DiskError: If they cannot be written.
    """
    path = run / FILE.format(index)
    with atomic_io.writing(path):
        private_files.make_folder(path.parent)
    atomic_io.write_durably(path, atomic_io.pack(arrays), named=False, private=True)


def read(run: Path, index: int) -> Arrays:
    """Return the arrays of a node; nothing where none are kept.

    Raises:
        StorageError: If they cannot be read.
    """
    path = run / FILE.format(index)
    return atomic_io.read_arrays(path) if path.is_file() else {}
