"""One secure sum on the server: keys and shares before it, the vectors that arrive, and the shares that unmask it.

What is summed, and what becomes of the sum, is in :mod:`fedshift_app.features.secure_sums.server`.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message

from fedshift_core.errors import FederationError, FedShiftError
from fedshift_core.limits import Refused
from fedshift_core.plural import plural
from fedshift_core.run_settings import RunSettings
from fedshift_core.secure import crypto, protocol
from fedshift_core.secure.group import ANSWERS, Group
from fedshift_core.secure.identity import MOST_SIGNATURE
from fedshift_core.secure.layout import Layout
from fedshift_core.secure.recovery import Dealt, Unmasking, empty
from fedshift_core.secure.statement import Statement, check_effective
from fedshift_core.wire import names as wire
from fedshift_core.wire.records import array_record
from fedshift_core.wire.rows import unlike
from fedshift_strategies import weighting
from fedshift_strategies.features.base import LeaveOut, Node
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.updates import by_reason, decode

Ask = Callable[[dict[Node, dict[str, Any]]], list[Message]]
Said = Mapping[str, Any]


@dataclass(frozen=True)
class Keys:
    """A node's part of a sum, as it was sent.

    Attributes:
        public: Its public keys, for encryption and for masks.
        signed: Its long-term public key and its signature under statement and keys; both empty where it has none.
        statement: What it states of its images, as it was sent.
    """

    public: list[bytes]
    signed: list[bytes]
    statement: bytes

    @classmethod
    def of(cls, said: Said) -> "Keys | None":
        """Return the keys of an answer; None where they are no two different points of the curve."""
        own, stated = texts_of(said, wire.SECURE_KEYS), texts_of(said, wire.SECURE_STATEMENTS)
        if len({*own}) != 2 or len(own) != 2 or not all(map(crypto.is_public, own)) or len(stated) != 1:
            return None
        signed = texts_of(said, wire.SECURE_SIGNED)  # nodes check them
        fits = len(signed) == 2 and len(signed[0]) <= crypto.PUBLIC_BYTES and len(signed[1]) <= MOST_SIGNATURE
        return cls(own, signed if fits else [b"", b""], stated[0])


@dataclass(frozen=True)
class Added:
    """The masked vectors that arrived.

    Attributes:
        total: Their sum, with its masks.
        nodes: Whose they are, by index.
        problems: Why others are not in it.
    """

    total: crypto.Residues
    nodes: list[Node]
    problems: list[tuple[Node, str]]


@dataclass
class Dealing:
    """A secure sum on its way.

    Attributes:
        server_round: The round.
        purpose: What is summed, of ``group.PURPOSES``.
        config: Of the run.
        alike: Whether nodes weigh the same by the method's own rule.
        ask: Sends each node its own question, and returns the answers.
        leave_out: Is handed each node whose answer is not used, why, and whether it is ``lost``.
        refused: The nodes whose answers are not used, and why.
        nodes: The nodes that have dealt, by index.
        bytes_up: Bytes of keys, shares and what belongs to them in the answers to questions.
        bytes_down: Bytes of these in questions, and in messages about work.
    """

    server_round: int
    purpose: str
    config: RunSettings
    alike: bool
    ask: Ask
    leave_out: LeaveOut
    refused: list[tuple[Node, str]] = field(default_factory=list)
    nodes: dict[int, Node] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0

    def begin(self, nodes: list[Node]) -> None:
        """Exchange keys and shares.

        Raises:
            FederationError: If fewer nodes deal than are needed, or those that do would not hide each other.
        """
        keys = self._keys(nodes)
        present = sorted(keys, key=lambda node: node.index)
        _check_left(len(present), self.config.federation.secure_sums_nodes, "sent keys")
        self._dealt = Dealt(self._group(present, [keys[node] for node in present]))
        group = self.group
        question: dict[str, Any] = {
            wire.SECURE_NODES: list(group.nodes),
            wire.SECURE_KEYS: list(group.cipher_keys),
            wire.SECURE_MASK_KEYS: list(group.mask_keys),
            wire.SECURE_STATEMENTS: [statement.written() for statement in group.statements],
        }
        if group.publics:
            question[wire.SECURE_SIGNED] = [part for node in present for part in keys[node].signed]
        for node, said in self._asked(protocol.SHARES, dict.fromkeys(present, question)):
            texts, digests = texts_of(said, wire.SECURE_TEXTS), texts_of(said, wire.SECURE_DIGESTS)
            seed = said.get(wire.SECURE_SEED)
            with self._dropping(node):
                self._dealt.take(node.index, texts, digests, seed if isinstance(seed, bytes) else b"")
        self.nodes = {node.index: node for node in present if node.index in self._dealt.seeds}
        _check_left(len(self.nodes), group.threshold, "dealt their shares")

    @property
    def group(self) -> Group:
        """The group, alike for all nodes."""
        return self._dealt.group

    def options(self, node: Node) -> dict[str, Any]:
        """Return the shares for a node, which go with the message about work."""
        others, texts, digests = self._dealt.for_node(node.index)
        options = {wire.SECURE_NODES: others, wire.SECURE_TEXTS: texts, wire.SECURE_DIGESTS: digests}
        self.bytes_down += _num_bytes(options)
        return options

    def weight(self, nodes: Iterable[Node]) -> float:
        """Return the sum of what the numbers of nodes are multiplied by."""
        factors = dict(zip(self.group.nodes, self.group.factors, strict=True))
        return sum(factors[node.index] for node in nodes)

    def added(
        self,
        asked: Mapping[int, Node],
        replies: Iterable[Message],
        layout: Layout,
        record: str,
        read: Callable[[Node, Message], Said],
        observe: Callable[[Node, Said], None],
    ) -> Added:
        """Return the sum of the vectors that arrived.

        Args:
            asked: The nodes that were sent the message about work, by their id.
            replies: One of each at most.
            layout: What is where in a vector.
            record: The record of the vector.
            read: Returns the numbers of a reply, checked; raises ``Refused``.
            observe: Is handed the numbers of each reply that is used.

        Raises:
            FederationError: If fewer arrived than are needed.
        """
        added, waiting = Added(empty(layout.size), [], []), dict(asked)
        for reply in sorted(replies, key=lambda reply: asked[reply.metadata.src_node_id].index):
            node = waiting.pop(reply.metadata.src_node_id)
            try:
                metrics, vector = read(node, reply), vector_of(reply, record, layout)
            except Refused as refused:
                added.problems.append((node, str(refused)))
            else:
                observe(node, metrics)
                np.add(added.total, vector, out=added.total)
                added.nodes.append(node)
            checks.let_go(reply)
        added.problems.extend((node, checks.NO_ANSWER) for node in waiting.values())
        added.problems.sort(key=lambda problem: problem[0].index)
        if len(added.nodes) < self.group.threshold:
            raise FederationError(
                f"round {self.server_round}: secure sums: {len(added.nodes)} of {plural(len(asked), 'node')} "
                f"delivered, {self.group.threshold} are needed: {by_reason(added.problems)}"
            )
        return added

    def unmasked(self, added: Added, sent: bytes) -> crypto.Residues:
        """Ask for the shares that take the masks off, and return the sum without them.

        Nodes refuse where it would not hide each of them.

        Args:
            added: The masked sum.
            sent: The digest of what all nodes were sent alike.

        Raises:
            FederationError: If too few shares arrive.
        """
        unmasking = Unmasking(self._dealt, [node.index for node in added.nodes])
        question = {wire.SECURE_ALIVE: unmasking.alive, wire.SECURE_LOST: unmasking.lost}
        before = len(self.refused)
        for node, said in self._asked(protocol.UNMASK, dict.fromkeys(added.nodes, question)):
            with self._dropping(node):
                unmasking.take(node.index, texts_of(said, wire.SECURE_REVEALED))
        for index, why in sorted(unmasking.wrong.items()):
            self.leave_out(self.nodes[index], f"secure sums: {why}; its shares are not used, its vector is")
        try:
            return unmasking.unmasked(added.total, sent)
        except FederationError as error:
            reasons = [*self.refused[before:], *added.problems]
            raise FederationError(f"round {self.server_round}: {error}", by_reason(reasons)) from None

    # --- parts -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _dropping(self, node: Node) -> Iterator[None]:
        """Leave a node out whose answer is refused."""
        try:
            yield
        except Refused as refused:
            why = str(refused)
            self._drop(node, f"secure sums: {why}", lost=checks.is_lost(why))

    def _drop(self, node: Node, why: str, *, lost: bool = False) -> None:
        self.refused.append((node, why))
        self.leave_out(node, why, lost=lost)

    def _keys(self, nodes: list[Node]) -> dict[Node, Keys]:
        """Return the keys of the nodes that answer, and of which no other one has sent a key: nodes refuse such a sum.

        Each states what it announced before round 1, by which it is averaged.
        """
        keys: dict[Node, Keys] = {}
        for node, said in self._asked(protocol.KEYS, {node: {} for node in nodes}):
            with self._dropping(node):
                own = Keys.of(said)
                if own is None:
                    raise Refused(f"{wire.SECURE_KEYS} are not two different public keys, with a statement")
                if own.statement != stated(node).written():
                    raise Refused("it states other images than it announced before round 1")
                keys[node] = own
        times = Counter(key for own in keys.values() for key in own.public)
        for node in [node for node, own in keys.items() if any(times[key] > 1 for key in own.public)]:
            self._drop(node, "secure sums: another node sent the same public key")
            del keys[node]
        return keys

    def _group(self, present: list[Node], keys: list[Keys]) -> Group:
        """Return what all nodes go by alike.

        Raises:
            FederationError: If these nodes would not hide each other.
        """
        federation, statements = self.config.federation, tuple(map(stated, present))
        publics = tuple(own.signed[0] for own in keys)
        return Group(
            self.server_round,
            tuple(node.index for node in present),
            tuple(own.public[0] for own in keys),
            tuple(own.public[1] for own in keys),
            statements,
            hiding_factors(self.config, statements, self.purpose, alike=self.alike),
            federation.secure_sums_nodes,
            federation.secure_sums_least,
            self.purpose,
            publics if any(publics) else (),
        )

    def _asked(self, stage: str, questions: Mapping[Node, Said]) -> Iterator[tuple[Node, Said]]:
        """Yield each node that answers a question of a stage with what it says; others are left out."""
        head = {wire.SECURE_STAGE: stage, wire.SECURE_PURPOSE: self.purpose}
        waiting = {node.node_id: node for node in questions}
        self.bytes_down += sum(map(_num_bytes, questions.values()))
        for reply in self.ask({node: {**head, **question} for node, question in questions.items()}):
            node = waiting.pop(reply.metadata.src_node_id)
            with self._dropping(node):
                said = checks.config_of(checks.opened(reply, (wire.CONFIG,)))
                self.bytes_up += _num_bytes(said)
                yield node, said
        for node in waiting.values():
            self._drop(node, checks.NO_ANSWER, lost=True)


def _check_left(number: int, needed: int, did: str) -> None:
    if number < needed:
        raise FederationError(f"secure sums: {plural(number, 'node')} {did}, {needed} are needed")


def hiding_factors(
    config: RunSettings, statements: Sequence[Statement], purpose: str, *, alike: bool
) -> tuple[float, ...]:
    """Return the weights of nodes that state so much; refuse those by which too few would hide each other.

    Raises:
        FederationError: With the number found, and what helps.
    """
    factors = weighting.factors(config, statements, purpose, alike=alike)
    try:
        check_effective(factors, config.federation.secure_sums_least)
    except FedShiftError as error:
        remedy = "aggregation.weights=equal where weights are averaged"
        if purpose == ANSWERS:
            remedy = "a smaller evaluate.bn_images, by which BatchNorm's statistics weigh"
        raise FederationError(
            f"secure sums ({purpose}): {str(error).removeprefix('refused: ')}; what helps: {remedy}, more nodes, or a "
            "lower key if their owners allow it"
        ) from None
    return factors


def stated(node: Node) -> Statement:
    """Return what a node is to state, by what it announced."""
    return Statement.of(node.num_examples, node.class_counts)


def vector_of(reply: Message, name: str, layout: Layout) -> crypto.Residues:
    """Return the masked vector of a reply; raise ``Refused`` where it is none."""
    record = array_record(reply.content, name)
    arrays = {} if record is None else decode(record)
    if why := unlike(arrays, {wire.MASKED: ((layout.size,), np.uint32)}):
        raise Refused(f"the vector of a secure sum: {why}")
    return arrays[wire.MASKED]


def texts_of(said: Said, name: str) -> list[bytes]:
    """Return a list of bytes that a node sends; an empty one where it is none."""
    value = said.get(name)
    return value if isinstance(value, list) and all(isinstance(part, bytes) for part in value) else []


def _num_bytes(said: Said) -> int:
    """Return the bytes of keys, shares, digests and statements."""
    values = [part for value in said.values() for part in (value if isinstance(value, list) else [value])]
    return sum(len(part) for part in values if isinstance(part, bytes))
