"""The last weights that a real node was sent, kept on its disk for its owner's report (``supernode --keep-model``)."""

import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Context, Message, MessageType

from fedshift_app.node import state_folder
from fedshift_core import atomic_io, private_files
from fedshift_core.arrays import Arrays
from fedshift_core.env import KEEP_MODEL
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import plain
from fedshift_core.wire.messages import WorkRequest
from fedshift_core.wire.records import decode

log = logging.getLogger("fedshift")

FILE = "received.safetensors"
_WEIGHTS, _KNOWLEDGE, _ABOUT = "weights/", "knowledge/", "about"


@dataclass(frozen=True)
class Received:
    """What a node was sent.

    Attributes:
        run: The run's configuration as JSON.
        run_id: The run.
        server_round: The round of the message.
        resumed_after: The rounds after which the run had been resumed.
        trained: The node was to train on it: it is the model before that round.
        node_index: The node's place in the federation.
        weights: The shared weights.
        knowledge: What the method shares besides.
    """

    run: str
    run_id: str
    server_round: int
    resumed_after: tuple[int, ...]
    trained: bool
    node_index: int
    weights: Arrays
    knowledge: Arrays


def keep(kind: str, msg: Message, context: Context) -> None:
    """Keep the weights of a message that was worked on, if the node's owner wants that. A full disk is a warning.

    Args:
        kind: The type of the message.
        msg: The message, unpacked.
        context: The node's.
    """
    folder = state_folder.own_folder(context.node_config)
    if folder is None or os.environ.get(KEEP_MODEL) != "1" or kind == MessageType.QUERY:
        return
    request = WorkRequest.from_record(msg.content)
    about = {
        "run": request.header.run,
        "run_id": request.header.run_id,
        "server_round": request.server_round,
        "resumed_after": request.header.resumed_after,
        "trained": kind == MessageType.TRAIN,
        "node_index": request.node_index,
    }
    arrays: Arrays = {_ABOUT: np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for prefix, record in ((_WEIGHTS, request.weights), (_KNOWLEDGE, request.knowledge)):
        arrays |= {prefix + name: array for name, array in decode(record).items()}
    try:
        private_files.make_folder(folder)
        atomic_io.write_durably(folder / FILE, atomic_io.pack(arrays), private=True)
    except OSError as error:
        log.warning("the received model is not kept: %s", plain(str(error)))


def read(folder: Path) -> Received | None:
    """Return what a node kept in its folder; None if it kept nothing.

    Raises:
        FedShiftError: If it cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        arrays = atomic_io.unpack(path.read_bytes())
        about = json.loads(arrays.pop(_ABOUT).tobytes())
        about["resumed_after"] = tuple(about["resumed_after"])
        for prefix, part in ((_WEIGHTS, "weights"), (_KNOWLEDGE, "knowledge")):
            about[part] = {n.removeprefix(prefix): array for n, array in arrays.items() if n.startswith(prefix)}
        return Received(**about)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedShiftError(f"{path} cannot be read: {plain(str(error))}; remove it") from None
