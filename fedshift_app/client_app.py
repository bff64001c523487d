"""The ClientApp: turns a message into a call of the method's NumPyClient, and its answer into a message."""

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from fedshift_app.config import registry
from fedshift_app.flower import simulating
from fedshift_app.node import (
    loading,
    memory,
    one_time_payload,
    out_log,
    owner,
    reasons,
    received_model,
    requests,
    setup,
    state_store,
)
from fedshift_app.node.feature_state import kept_for
from fedshift_app.node.introducing import introduce
from fedshift_app.node.owner import Owner
from fedshift_app.node.place import Place
from fedshift_app.run import console
from fedshift_clients.base import RoundInputs
from fedshift_clients.features import Call
from fedshift_core.features import ours
from fedshift_core.limits import plain
from fedshift_core.registry import imported
from fedshift_core.wire.messages import WorkReply, WorkRequest
from fedshift_core.wire.names import DECLINED, KNOWLEDGE
from fedshift_core.wire.packing import has_packed, packed, unpacked
from fedshift_core.wire.records import decode, encode

Work = Callable[[Message, Context, Owner], RecordDict]

app = ClientApp()
console.set_up_node()
simulating.prepare()
# What all methods rest on: a process that is forked for a message has it imported then.
registry.METHODS[registry.FIRST].strategy_class()
registry.METHODS[registry.FIRST].client_class()
for _feature in ours():
    if _feature.node:
        imported(_feature.node)
import_module("numpy.ma")  # by numpy.unique


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train on the node's images."""
    return _answer(MessageType.TRAIN, msg, context, _train)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Score the weights on the domains that the server asks for."""
    return _answer(MessageType.EVALUATE, msg, context, _evaluate)


@app.query()
def query(msg: Message, context: Context) -> Message:
    """Tell what the node is: its domain, its numbers of images; or why it cannot take part."""
    return _answer(MessageType.QUERY, msg, context, introduce)


def _answer(kind: str, msg: Message, context: Context, work: Work) -> Message:
    """Reply with what ``work`` returns, or with a line on its error. Refuse what run or owner do not ask for.

    Flower would send the error as it is; what may leave of it is in :mod:`fedshift_app.node.reasons`.
    """
    try:
        return Message(_as_asked(kind, msg, context, work), reply_to=msg)
    except Exception as error:
        code, reason = reasons.of(error, context)
    domain = context.node_config.get("domain", "")
    if code == DECLINED and kind == MessageType.QUERY and domain:  # the node has no place yet
        reason = plain(f"node of {domain}: {reason}")
    return Message(Error(code=code, reason=out_log.refusal(kind, msg, context, reason)), reply_to=msg)


def _as_asked(kind: str, msg: Message, context: Context, work: Work) -> RecordDict:
    """Return what ``work`` returns, with its arrays packed as the message's are; ``work`` finds those unpacked.

    Before it works, the run's code is held against this node's (:mod:`fedshift_app.node.own_code`), the message against
    the run's configuration (:mod:`fedshift_app.node.requests`) and the owner's policy
    (:mod:`fedshift_app.node.owner`); what that does not let out of the reply stays. What leaves a real node is logged
    there last (:mod:`fedshift_app.node.out_log`).
    """
    owner.admit_code(context)
    was_packed = has_packed(msg.content)
    if was_packed:
        msg.content = unpacked(msg.content)
    requests.admit(kind, msg, context)
    allowed = owner.admit(kind, msg, context)
    reply = allowed.leaves(kind, work(msg, context, allowed))
    received_model.keep(kind, msg, context)
    content = packed(reply) if was_packed else reply
    out_log.record(kind, msg, context, reply)  # nothing comes after it: what is logged leaves, what is not stays
    return content


def _train(msg: Message, context: Context, allowed: Owner) -> RecordDict:
    call, started_anew = open_client(msg, context, allowed.where)
    reply = call.client.train(call)
    kept, knowledge = bool(call.client.memory), encode(reply.knowledge or {})
    return WorkReply(reply.images, reply.metrics, kept, started_anew, encode(reply.weights), knowledge).to_record()


def _evaluate(msg: Message, context: Context, allowed: Owner) -> RecordDict:
    call, started_anew = open_client(msg, context, allowed.where)
    reply = call.client.scores(call)
    records = reply.records if reply.knowledge is None else {KNOWLEDGE: reply.knowledge}
    encoded = {name: encode(arrays) for name, arrays in records.items()}
    return WorkReply(reply.images, reply.metrics, started_anew=started_anew, records=encoded).to_record()


def open_client(msg: Message, context: Context, where: Place | None = None) -> tuple[Call, bool]:
    """Return what a message about weights asks of a client, which is ready for it; whether what it had kept is gone.

    Args:
        msg: The message.
        context: The node's.
        where: The node, as its owner's policy has it; None of a simulated one.

    Raises:
        FedShiftError: If the node lacks what it needs, or its memory cannot be read.
    """
    started, request = time.perf_counter(), WorkRequest.from_record(msg.content)
    config = setup.read_config(request.header.run)
    where = where or setup.place(config, context, request.header.engine)
    client = setup.make_client(config, where, request.node_index)
    store = state_store.store_for(request.header, where)
    one_time_payload.begin(client, request.header, request.start, store)
    trains = msg.metadata.message_type == MessageType.TRAIN
    kept = memory.recall(store, context, request.server_round if trains else None, where.domain)
    client.prepare(RoundInputs(decode(request.knowledge), request.scalars, kept or {}))
    sent = decode(request.weights)
    loading.in_order(sent, client, "the server's")
    call = Call.to(
        client,
        sent,
        options=request.options,
        server_round=request.server_round,
        run=str(msg.metadata.run_id),
        state=partial(kept_for, context),
        records={name: decode(record) for name, record in request.records.items()},
        started=started,
        keep=lambda: memory.keep(store, context, client.server_round, client.memory),
    )
    return call, kept is None
