"""What a node begins from in addition to the weights of each round. It comes once, and is kept on the node's disk."""

import re
from pathlib import Path

from flwr.app import ArrayRecord

from fedshift_app.node import loading
from fedshift_app.node.state_store import START_STEM, StateStore
from fedshift_clients.base import DomainClient
from fedshift_core import atomic_io
from fedshift_core.arrays import Arrays, digest
from fedshift_core.errors import FedShiftError, RequestError
from fedshift_core.limits import as_found
from fedshift_core.wire.messages import RunHeader
from fedshift_core.wire.records import decode

_SUFFIX = ".safetensors"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def begin(client: DomainClient, header: RunHeader, sent: ArrayRecord | None, store: StateStore) -> None:
    """Let a client begin from what the server sent now or earlier. Nothing happens if the message names nothing.

    Args:
        client: As it was made.
        header: What the message says of the run.
        sent: What came with it to begin from; None for nothing.
        store: Where the node keeps what it remembers; a simulated node finds the server's own file next to it.

    Raises:
        FedShiftError: If the arrays are not there (the server sends them again), not what the server says that they
            are, or not of the client's model.
    """
    wanted = header.start_digest
    if not wanted or client.begun == wanted:
        return
    if not _DIGEST.fullmatch(wanted):  # it becomes a part of a file's name
        raise RequestError(f"the server says that nodes begin from {as_found(wanted)}, expected 64 hexadecimal digits")
    folder = store.folder if store.own else Path(header.kept_in).parent if header.kept_in else None
    if sent is not None:
        arrays = decode(sent)
        if digest(arrays) != wanted:
            raise RequestError("what the server sent to begin from is not what it says that it is")
        check(arrays, client)
        if store.own and folder is not None:
            store.make()
            write(folder, arrays, private=True)
            for path in folder.glob(f"{START_STEM}*{_SUFFIX}"):
                if path.name != _name(wanted):  # a server that sends ever new arrays must not fill the disk
                    path.unlink(missing_ok=True)
    else:
        kept = None if folder is None else folder / _name(wanted)
        if kept is None or not kept.is_file() or digest(arrays := atomic_io.read_arrays(kept)) != wanted:
            raise FedShiftError("this node no longer has the frozen weights that it was sent once; it needs them again")
        check(arrays, client)
    client.begin(arrays, wanted)


def check(arrays: Arrays, client: DomainClient) -> None:
    """Refuse what is not of a client's model, or travels each round.

    Raises:
        FedShiftError: With the first names.
    """
    state, moving = client.model.state_dict(), set(client.shared_names)
    strange = sorted(name for name in arrays if name not in state or name in moving)
    strange += sorted(client.shared_frozen - arrays.keys())
    if strange:
        raise FedShiftError(f"what this node is to begin from does not match its model: {', '.join(strange[:3])}")
    loading.check_arrays(arrays, state, "to begin from:")


def write(folder: Path, arrays: Arrays, *, private: bool = False) -> None:
    """Keep arrays in a folder, under the start of their digest.

    Args:
        folder: Where.
        arrays: What.
        private: Only the owner of the file may read it.

    Raises:
        DiskError: If they cannot be written.
    """
    atomic_io.write_durably(folder / _name(digest(arrays)), atomic_io.pack(arrays), private=private)


def of_run(folder: Path) -> Arrays:
    """Return what the nodes of a run began from, out of its checkpoint folder; nothing where there is none.

    Raises:
        FedShiftError: If it cannot be read or is not what was written.
    """
    for path in sorted(folder.glob(f"{START_STEM}*{_SUFFIX}")):
        arrays = atomic_io.read_arrays(path)
        if _name(digest(arrays)) != path.name:
            raise FedShiftError(f"{path} is not what was written: its hash differs")
        return arrays
    return {}


def _name(wanted: str) -> str:
    return f"{START_STEM}{wanted[:16]}{_SUFFIX}"
