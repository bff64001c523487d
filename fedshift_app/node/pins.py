"""What a node remembers of a run so that the server cannot change it from message to message.

The configuration comes inside each message. The first one of a run (of Flower's run id) is kept as a hash in
``context.state``, with the run's own id, the node's index and the digest of what nodes begin from; a message with
others is refused. A run that is resumed
is another one to Flower, and may have more rounds.
"""

import functools
import hashlib
from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Message

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_core.errors import RequestError
from fedshift_core.wire.names import NODE_INDEX, RUN, RUN_ID, SERVER_ROUND, START_DIGEST
from fedshift_core.wire.records import config_record

PINS = "pins"  # the record of context.state
_FLOWER_RUN, _CONFIGURATION, _TRAINED = "flower-run", "configuration", "trained"


def hold(msg: Message, context: Context, given: Mapping[str, Any], config: RunConfig, *, trains: bool) -> None:
    """Keep what a run may not change any more, or refuse a message that has it otherwise.

    Args:
        msg: The message.
        context: The node's.
        given: The record ``config`` of the message, checked.
        config: The configuration in it.
        trains: The message is to train. Where the run has noise, a node trains once in a round, and goes on to later
            ones only: the mean of several noised updates of a round would have less noise.

    Raises:
        RequestError: With what differs.
    """
    flower_run = str(msg.metadata.run_id)
    kept: dict[str, Any] = dict(config_record(context.state, PINS) or {})
    if kept.get(_FLOWER_RUN) != flower_run:
        kept = {_FLOWER_RUN: flower_run}
    new = {key: given[key] for key in (RUN_ID, NODE_INDEX, START_DIGEST) if key in given}
    for key, value in {_CONFIGURATION: _digest(str(given[RUN])), **new}.items():
        if kept.setdefault(key, value) != value:
            found, before = f"{key}={value!r}", f", it was {kept[key]!r} before"
            found, before = ("another configuration", "") if key == _CONFIGURATION else (found, before)
            raise RequestError(
                f"refused: the server sends {found} within one run{before}; a run has one from its start"
            )
    if trains and config.privacy.name != "none":
        server_round, last = int(given[SERVER_ROUND]), int(kept.get(_TRAINED, 0))
        if server_round <= last:
            raise RequestError(
                f"refused: the server sends {SERVER_ROUND}={server_round}, but this node has trained in round {last} "
                f"and this run has privacy.name={config.privacy.name}: a round's update leaves a node once"
            )
        kept[_TRAINED] = server_round
    context.state[PINS] = ConfigRecord(kept)


@functools.lru_cache(maxsize=4)
def _digest(run_json: str) -> str:
    """Return the SHA-256 of a configuration, without what the server decides after the first answers."""
    config = setup.read_config(run_json)
    settled = config.model_copy(update={"train": config.train.model_copy(update={"arithmetic": ""})})
    return hashlib.sha256(settled.model_dump_json().encode()).hexdigest()
