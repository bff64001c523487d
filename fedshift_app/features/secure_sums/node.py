"""Masks on what leaves a node (``federation.secure_sums``): its side of ``fedshift_core.secure.protocol``.

What the server checks of single replies elsewhere, a node checks itself before it masks: numbers are finite and within
``federation.secure_sums_range``. A node that holds others sends nothing, and says so.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedshift_clients.features import Call, Metrics, Next, NodeFeature, Place, Question, Reply, Request
from fedshift_core.arrays import Arrays
from fedshift_core.errors import RequestError
from fedshift_core.features import ours
from fedshift_core.secure import identity, protocol
from fedshift_core.secure.group import ANSWERS, PURPOSES, Group
from fedshift_core.secure.identity import Signed
from fedshift_core.secure.layout import (
    COUNTS,
    KNOWLEDGE,
    LOSSES,
    REPORTS,
    WEIGHTS,
    Sum,
    has_rows,
    layout_of,
    of_powers,
    read,
    row_weights,
)
from fedshift_core.secure.protocol import Member
from fedshift_core.secure.statement import Statement
from fedshift_core.wire import names as wire

log = logging.getLogger("fedshift")

_STAGES: Mapping[str, tuple[str, ...]] = {
    protocol.KEYS: (wire.SECURE_PURPOSE,),
    protocol.SHARES: (
        wire.SECURE_PURPOSE,
        wire.SECURE_NODES,
        wire.SECURE_KEYS,
        wire.SECURE_MASK_KEYS,
        wire.SECURE_STATEMENTS,
    ),
    protocol.UNMASK: (wire.SECURE_PURPOSE, wire.SECURE_ALIVE, wire.SECURE_LOST),
}
_SHARES = (wire.SECURE_NODES, wire.SECURE_TEXTS, wire.SECURE_DIGESTS)
#: What makes a message to evaluate a question whose answer can be summed.
_ASKING = {
    key.name
    for feature in ours()
    if feature.option != "federation.secure_sums"
    for key in feature.evaluate
    if key.replaces_scores
}


class SecureSumsOnNode(NodeFeature):
    """Deals keys and shares, masks what local training left, and reveals shares of each round once."""

    place = Place.MASK

    def refuse(self, request: Request) -> str:
        """Allow what a run with secure sums asks for."""
        given = request.given
        stage, purpose = given.get(wire.SECURE_STAGE), given.get(wire.SECURE_PURPOSE)
        stages = "" if stage in _STAGES else f"there are {', '.join(_STAGES)}"
        purposes = "" if purpose in PURPOSES else f"there are {', '.join(PURPOSES)}"
        if why := request.but(wire.SECURE_STAGE, stages) or request.but(wire.SECURE_PURPOSE, purposes):
            return why
        if request.kind == "evaluate" and not given.keys() & _ASKING:
            bare = (request.but(key, "it asks for nothing that can be summed") for key in _SHARES)
            return next(filter(None, bare), "")
        if strange := sorted({*given.get(wire.SECURE_SUMS, ())} - {*request.sums}):
            known = ", ".join(request.sums) or "no sums"
            return request.but(wire.SECURE_SUMS, f"the run's method has {known}, not {strange[0][:80]}")
        return ""

    def answer(self, call: Question) -> dict[str, Any] | None:
        """Return keys, shares for others, or revealed shares, as the message asks."""
        stage = call.options.get(wire.SECURE_STAGE)
        if stage is None:
            return None
        _check(call.options, _STAGES[stage], f"a question of the stage {stage!r}")
        member = Member(call.state(self.name), call.index, call.options[wire.SECURE_PURPOSE])
        if stage == protocol.KEYS:
            keys, statement, signer = (
                member.keys(call.run, call.server_round),
                call.statement().written(),
                call.signer(),
            )
            answer = {wire.SECURE_KEYS: list(keys), wire.SECURE_STATEMENTS: [statement]}
            if signer is not None:
                of_sum = call.server_round, call.options[wire.SECURE_PURPOSE]
                signed = signer.sign(call.run, call.index, of_sum, (statement, *keys))
                answer[wire.SECURE_SIGNED] = [signed.public, signed.signature]
            return answer
        if stage == protocol.SHARES:
            flat = call.options.get(wire.SECURE_SIGNED, ())
            signatures = [Signed(*pair) for pair in zip(flat[::2], flat[1::2], strict=False)]
            group = _group(call, tuple(one.public for one in signatures))
            if call.trusted:
                identity.check(group, signatures, call.run, call.index, call.trusted)
            texts, digests, seed = member.deal(group)
            return {wire.SECURE_TEXTS: texts, wire.SECURE_DIGESTS: digests, wire.SECURE_SEED: seed}
        alive, lost = call.options[wire.SECURE_ALIVE], call.options[wire.SECURE_LOST]
        return {wire.SECURE_REVEALED: member.reveal(call.server_round, alive, lost, call.once)}

    def on_train(self, call: Call, next: Next) -> Reply:
        """Return the masked vector in the place of weights, contributions and losses.

        The shares of the other nodes are taken in before training.

        Raises:
            RequestError: If the message lacks them, they are not those of this round, or a number is not finite or out
                of range.
        """
        options, member = call.options, Member(call.state(self.name), call.index)
        _check(options, (*_SHARES, *protocol.COMMON), "a message to train")
        _receive(member, call)
        call.client.summed = member.summed
        reply = next(call)
        knowledge, most = reply.knowledge or {}, call.config.federation.secure_sums_range
        sums, terms = read(options[wire.SECURE_SUMS]), options[wire.SECURE_TERMS]
        if sums.keys() != knowledge.keys():
            raise RequestError(
                f"secure sums: the server asks for {', '.join(sums) or 'nothing'} in addition to weights, this node "
                f"has {', '.join(knowledge) or 'nothing'}"
            )
        shapes = {name: knowledge[name].shape for name in sums}
        layout = layout_of(call.sent, shapes, terms, most, member.nodes, _whole(knowledge))
        values: Arrays = {
            WEIGHTS + name: (reply.weights[name].astype(np.float64) - base) * member.factor
            for name, base in call.sent.items()
        }
        values |= _contributions(knowledge, sums, member)
        values |= _losses(reply.metrics, terms, member.factor, most)
        common = [str(options[key]) for key in protocol.COMMON]
        contributed = protocol.digests_of({name: array for name, array in knowledge.items() if name != COUNTS})
        masked = member.mask(
            layout.vector(values),
            protocol.digest_of(call.sent, *common),
            weights=protocol.weights_digest(call.sent),
            contributed=contributed,
            rows=has_rows(sums),
        )
        others = {k: v for k, v in reply.metrics.items() if k != wire.LOSS and not k.startswith(wire.LOSS_TERM)}
        return Reply(reply.images, others, {wire.MASKED: masked}, {})

    def on_scores(self, call: Call, next: Next) -> Reply:
        """Return the masked vector of an answer's means, times the node's share of images; scores as they are.

        Raises:
            RequestError: If an answer has no means, or one is not finite or out of range.
        """
        reply = next(call)
        if reply.knowledge is None:
            return reply
        if reply.means.keys() != reply.knowledge.keys():
            raise RequestError("refused: the answer is no sum, and this run has federation.secure_sums=on")
        _check(call.options, _SHARES, "a question in place of scores")
        member = Member(call.state(self.name), call.index, ANSWERS)
        _receive(member, call)
        sizes = {name: array.size for name, array in reply.means.items()}
        layout = of_powers(sizes, reply.powers, call.config.federation.secure_sums_range, member.nodes)
        vector = layout.vector({name: array * member.factor for name, array in reply.means.items()})
        first = dict([*reply.knowledge.items()][:1])  # of the layer behind the fewest weights
        masked = member.mask(
            vector,
            protocol.digest_of(call.sent),
            weights=protocol.weights_digest(call.sent),
            contributed=protocol.digests_of(first),
        )
        return replace(reply, knowledge={wire.MASKED: masked}, means={}, powers={})


def _receive(member: Member, call: Call) -> None:
    """Take in the shares of the other nodes; those that are not what they committed to are named in the node's log."""
    if bad := member.receive(call.server_round, *(call.options[key] for key in _SHARES)):
        log.warning(
            "round %d: shares of nodes %s are not what they committed to, and are not used",
            call.server_round,
            ", ".join(map(str, bad)),
        )


def _check(options: Mapping[str, Any], needed: tuple[str, ...], message: str) -> None:
    for key in needed:
        if key not in options:
            raise RequestError(f"refused: {message} lacks {key}, and this run has federation.secure_sums=on")


def _group(call: Question, publics: tuple[bytes, ...]) -> Group:
    """Return the group of a sum, with the weights that follow from what its nodes state.

    Raises:
        RequestError: If what is passed on as this node's statement is another.
    """
    options, federation, own = call.options, call.config.federation, call.statement()
    nodes, purpose = tuple(options[wire.SECURE_NODES]), options[wire.SECURE_PURPOSE]
    statements = [Statement.read(data, len(own.classes)) for data in options[wire.SECURE_STATEMENTS]]
    if dict(zip(nodes, statements, strict=False)).get(call.index) != own:
        raise RequestError("refused: what this node states of its images is not among the statements of the sum")
    return Group(
        call.server_round,
        nodes,
        tuple(options[wire.SECURE_KEYS]),
        tuple(options[wire.SECURE_MASK_KEYS]),
        tuple(statements),
        call.weigh(statements, purpose),
        federation.secure_sums_nodes,
        federation.secure_sums_least,
        purpose,
        publics if any(publics) else (),
    )


def _contributions(knowledge: Arrays, sums: Mapping[str, Sum], member: Member) -> Arrays:
    """Return what the node contributes, its rows multiplied as the kind of sum says.

    Those of a class that too few nodes hold are zeros, as of a class that the node does not hold.
    """
    counts = np.where(member.summed, knowledge.get(COUNTS, 0), 0)
    values: Arrays = {}
    for name, how in sums.items():
        array = knowledge[name]
        rows = row_weights(how, counts, member.largest, array.ndim)
        if name == COUNTS:
            values[KNOWLEDGE + name] = (counts > 0).astype(np.int64) if how == "nodes" else counts
        elif name in _whole(knowledge):
            values[KNOWLEDGE + name] = np.where(np.asarray(rows) > 0, array, 0)
        else:
            values[KNOWLEDGE + name] = array.astype(np.float64) * rows
    return values


def _whole(knowledge: Arrays) -> list[str]:
    """Return the names of arrays of whole numbers, which are summed exactly."""
    return [name for name, array in knowledge.items() if array.dtype.kind == "i" and name != COUNTS]


def _losses(metrics: Metrics, terms: list[str], factor: float, most: float) -> Arrays:
    """Return each loss times the node's weight in the average, and that where it has the loss; larger ones are cut."""
    values: Arrays = {}
    for term in terms:
        has = term in metrics and bool(np.isfinite(metrics[term]))
        values[LOSSES + term] = np.array(factor * float(np.clip(metrics[term], -most, most)) if has else 0.0)
        values[REPORTS + term] = np.array(factor if has else 0.0)
    return values
