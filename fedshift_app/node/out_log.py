"""What leaves a real node, logged on the node's disk for its owner before it leaves.

The log (:mod:`fedshift_app.node.chained_log`) gets a line for each reply, and a line for each array, number and text in
it. A reply leaves only when they are on the disk: the log may hold one reply more than was sent, never one less. A
refusal is a reply with one text. What cannot be logged does not leave; the server gets a fixed line instead
(:data:`NOT_LOGGED`), the one text that may leave without a line.

**The bytes behind a hash.** Of an array: its .npy file as it travels (``Array.data``), also where it is packed with
others. Of a text: UTF-8. Of a number: 8 bytes, little-endian, a whole one as a signed integer, any other as IEEE 754;
of a list one number after the other.
"""

import hashlib
import logging
import math
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, Context, Message, MessageType, RecordDict

from fedshift_app.config import plugins
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import chained_log, own_code, setup, state_folder
from fedshift_app.node.chained_log import REPLY, LogError
from fedshift_clients import features
from fedshift_core import disclosure
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.wire.names import (
    ARRAYS,
    CLASS_COUNTS,
    CONFIG,
    KNOWLEDGE,
    MASKED,
    METRICS,
    NUM_EXAMPLES,
    NUM_TEST,
    RUN,
    RUN_ID,
    SERVER_ROUND,
)
from fedshift_core.wire.records import decode_array
from fedshift_strategies.contributions import behind

log = logging.getLogger("fedshift")

ARRAY = "array"  # the kind of a line of an array
REFUSAL = "error"  # the name of the text of a refusal
NOT_LOGGED = "refused: this node cannot write its log of what leaves it, so nothing leaves it"
SWITCHED_OFF = "refused: the owner of this node has switched it off"


def record(kind: str, msg: Message, context: Context, reply: RecordDict) -> None:
    """Log a reply of a real node; nothing is logged in a simulation.

    Args:
        kind: The type of the message, as its handler knows it.
        msg: The message, unpacked, which was held against the run's configuration.
        context: The node's.
        reply: The reply, before it is packed.

    Raises:
        FedShiftError: In one line, if it cannot be logged or the node is switched off: it must not leave.
    """
    folder = state_folder.own_folder(context.node_config)
    if folder is None:
        return
    config = setup.read_config(str(msg.content.config_records[CONFIG][RUN]))
    privacy, images, entries = config.privacy, _images(reply), list(items(reply))
    for line in entries:
        line |= {"word": _word(kind, line["name"], config)} if line["kind"] == ARRAY else {}
    more: dict[str, Any] = {"packages": brought} if (brought := plugins.brought(config)) else {}
    if kind == MessageType.TRAIN and privacy.name != "none":
        epsilon = setup.spending_of(config, images).epsilon(1) if privacy.of_images else privacy.spent(1)
        more |= {"epsilon": epsilon, "delta": privacy.delta}
    try:
        with chained_log.locked(folder):
            if chained_log.is_off(folder):
                raise FedShiftError(SWITCHED_OFF)
            _append(folder, kind, msg, entries, images, **more)
    except (OSError, LogError) as error:
        log.error("nothing leaves this node: %s", plain(str(error)))
        raise FedShiftError(NOT_LOGGED) from None


def refusal(kind: str, msg: Message, context: Context, reason: str) -> str:
    """Return the text with which a message is refused; a real node has logged it.

    Where it cannot be logged, or the node is switched off, it is a fixed line, which tells nothing.
    """
    folder = state_folder.own_folder(context.node_config)
    if folder is None:
        return reason
    try:
        with chained_log.locked(folder):
            reason = SWITCHED_OFF if chained_log.is_off(folder) else reason
            _append(folder, kind, msg, [item(REFUSAL, reason)], 0)
    except Exception:  # any: Flower would send what it says
        log.exception("nothing leaves this node")
        return NOT_LOGGED
    return reason


def _append(folder: Path, kind: str, msg: Message, entries: Sequence[dict[str, Any]], images: int, **more: Any) -> None:
    """Append the lines of a reply: what all say, the server's words among it, and in the first ``more``."""
    own, run = own_code.installed(), own_code.of_run()
    more |= {} if run is None or run.sha256 == own else {"code_of_run": run.sha256}
    config: Mapping[str, Any] = msg.content.config_records.get(CONFIG, {}) if msg.has_content() else {}
    number, run_id = config.get(SERVER_ROUND, 0), config.get(RUN_ID)  # the first message of a run has none yet
    about = {
        "time": chained_log.stamp(time.time()),
        "run": plain(run_id, MOST_NAME) if isinstance(run_id, str) and run_id else "",
        "flower_run": str(msg.metadata.run_id),
        "round": number if isinstance(number, int) else 0,
        "message": kind,
        "to": plain(msg.metadata.message_id, MOST_NAME),
    }
    lines = reply_lines(entries, code=own, **more)
    chained_log.append(folder, [{**about, **line, "images": images} for line in lines])


def _word(kind: str, name: str, config: RunConfig) -> str:
    """Return what an array of a reply tells of images (``fedshift_core.disclosure``); of a masked one that it is so."""
    record_name, _, array = name.partition("/")
    if array == MASKED:
        return MASKED
    if record_name == ARRAYS:
        return disclosure.of_shared(array)
    if record_name == KNOWLEDGE and kind == MessageType.TRAIN:
        return behind(config.declared.strategy_class(), array, config.method)
    return features.of(config).word(record_name)


def _images(reply: RecordDict) -> int:
    """Return how many of the node's images a reply was computed from, by its own count."""
    numbers: Mapping[str, Any] = reply.metric_records.get(METRICS, {})
    if NUM_EXAMPLES in numbers:
        return int(numbers[NUM_EXAMPLES])
    return int(sum(numbers.get(CLASS_COUNTS, ()))) + int(numbers.get(NUM_TEST, 0))


# --- what a reply holds -----------------------------------------------------------------------------


def items(reply: RecordDict) -> Iterator[dict[str, Any]]:
    """Yield what the log says of each array, number and text: kind, ``RECORD/NAME``, shape, norm, bytes, hash."""
    for record_name, content in reply.items():
        for name, value in content.items():
            yield item(f"{record_name}/{name}", value)


def reply_lines(entries: Sequence[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    """Return the lines of a reply, before them one with their number and bytes, and with ``more``."""
    size = sum(entry["bytes"] for entry in entries)
    return [{"kind": REPLY, **more, "items": len(entries), "bytes": size}, *entries]


def item(name: str, value: Any) -> dict[str, Any]:
    """Return what the log says of an array, a number, a text or a list of these; of no finite norm None."""
    several = value if isinstance(value, list) else [value]
    shape, more, norm = [len(several)] if isinstance(value, list) else [], {}, math.nan
    if isinstance(value, Array):
        flat = decode_array(name, value).reshape(-1)
        norm = math.sqrt(np.einsum("i,i", flat, flat, dtype=np.float64))
        kind, data, shape, more = ARRAY, value.data, list(value.shape), {"dtype": value.dtype}
    elif any(isinstance(one, str | bytes) for one in several):
        shape = [len(value)] if isinstance(value, str) else shape
        kind, data = "text", b"".join(one.encode() if isinstance(one, str) else one for one in several)
    else:
        data = b"".join(struct.pack("<q" if isinstance(one, int) else "<d", one) for one in several)
        kind, norm = "number", math.hypot(*several)
    return {
        "kind": kind,
        "name": name,
        "shape": shape,
        "norm": norm if math.isfinite(norm) else None,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        **more,
    }
