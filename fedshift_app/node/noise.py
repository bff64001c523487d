"""Clipping and noise on a node's update, by Flower's own mod for local differential privacy."""

from collections.abc import Callable

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod

from fedshift_app.config.privacy import PrivacyConfig
from fedshift_wire.errors import FedShiftError
from fedshift_wire.names import ARRAYS, KNOWLEDGE, LOSS, METRICS, START

Work = Callable[[Message, Context], RecordDict]


def with_noise(privacy: PrivacyConfig, msg: Message, context: Context, work: Work) -> RecordDict:
    """Return what ``work`` returns: its weights clipped and noised, and without its losses, if the run asks for it.

    Flower's mod takes messages of one ArrayRecord, so the knowledge and what a node begins from go around it; the
    knowledge must be empty on the way back. The noise comes from the system's entropy, not from the run's seed, which
    the server knows: such a run is not repeatable.

    Raises:
        FedShiftError: If the node contributes knowledge, or the mod refuses.
    """
    if privacy.name == "none":
        return work(msg, context)
    answer = RecordDict()
    around = {name: msg.content[name] for name in (KNOWLEDGE, START) if name in msg.content}

    def train(message: Message, own: Context) -> Message:
        message.content.update(around)
        answer.update(work(message, own))
        return Message(RecordDict({ARRAYS: answer[ARRAYS]}), reply_to=message)

    for name in around:
        del msg.content[name]
    noise = LocalDpMod(privacy.clipping_norm, privacy.sensitivity, privacy.epsilon, privacy.delta)
    reply = noise(msg, context, train)
    if reply.has_error():
        raise FedShiftError(reply.error.reason)
    contributed, metrics = answer[KNOWLEDGE], answer[METRICS]
    assert isinstance(contributed, ArrayRecord)
    assert isinstance(metrics, MetricRecord)
    if contributed:
        raise FedShiftError(f"privacy.name={privacy.name}: {', '.join(contributed)} would travel without noise")
    said = MetricRecord({name: value for name, value in metrics.items() if not name.startswith(LOSS)})
    return RecordDict({ARRAYS: reply.content[ARRAYS], KNOWLEDGE: ArrayRecord(), METRICS: said})
