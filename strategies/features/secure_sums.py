"""Sums of which the server sees no part (``federation.secure_sums``): its side of the protocol.

The protocol is that of :mod:`fedshift_core.secure.protocol`, its numbers those of :mod:`fedshift_core.secure.layout`.
A node sends one vector: the change of its weights, times its weight in the average over the largest weight of the
round; what it contributes; its losses, by its share of images. The server learns the sum, and makes of it one update,
which stands for all nodes whose vectors arrived; methods then merge that.

Weights of nodes are those of the run's rule for what each announced before round 1. Nodes that fail at a stage are left
out; a round in which fewer than t nodes remain is refused, which ends the run. It may be resumed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.limits import Refused
from fedshift_core.secure import crypto, protocol
from fedshift_core.secure.layout import COUNTS, KNOWLEDGE, LOSSES, REPORTS, WEIGHTS, Layout, Sum, layout_of, written
from fedshift_core.secure.protocol import Group
from fedshift_core.secure.recovery import Dealt, Unmasking, empty
from fedshift_core.wire import names as wire
from fedshift_core.wire.records import encode
from strategies.contributions import check_contribution
from strategies.features.base import Exchange, ServerFeature, Training
from strategies.federation import checks
from strategies.federation.nodes import Node
from strategies.federation.update_norms import SentWeights
from strategies.federation.updates import Sifted, Update, array_record, by_reason, decode

TOGETHER = "all nodes of the secure sum"


@dataclass
class _Round:
    """A round on its way.

    Attributes:
        dealt: What its nodes have dealt.
        nodes: Its nodes, by index.
        sums: How each contribution is a sum, of those that nodes send.
        bytes_up: Bytes of the answers to questions.
        bytes_down: Bytes of these questions, and of shares in messages to train.
    """

    dealt: Dealt
    nodes: dict[int, Node]
    sums: dict[str, Sum]
    bytes_up: int = 0
    bytes_down: int = 0

    @cached_property
    def factors(self) -> dict[int, float]:
        """By what a node's weights are multiplied, by index."""
        return dict(zip(self.dealt.group.nodes, self.dealt.group.factors, strict=True))

    @cached_property
    def most(self) -> NDArray[np.int64]:
        """The largest number of images of a node by class, at least 1, (C,); once all have dealt."""
        counts = np.array([node.class_counts for node in self.nodes.values()], np.int64)
        return np.asarray(np.maximum(counts.max(axis=0), 1))

    @cached_property
    def most_images(self) -> int:
        """The largest number of images of a node; once all have dealt."""
        return max(node.num_examples for node in self.nodes.values())

    def weight(self, nodes: Iterable[Node]) -> float:
        """Return the sum of what the weights of nodes are multiplied by."""
        return sum(self.factors[node.index] for node in nodes)


class SecureSums(ServerFeature):
    """Deals keys and shares among the nodes of a round, adds their masked vectors and unmasks the sum."""

    key = "secure_sums"

    _round: _Round | None = None

    @property
    def _is_on(self) -> bool:
        return self.run.config.federation.secure_sums

    @property
    def _fewest(self) -> int:
        return self.run.config.federation.secure_sums_nodes

    def description(self) -> str:
        """Return what the server learns in one line; empty where it sees each reply."""
        if not self._is_on:
            return ""
        return (
            f"federation.secure_sums=on: the server learns sums over {self._fewest} nodes or more of weights, "
            "contributions and losses, and no node's own"
        )

    def check_number(self, nodes: int) -> None:
        """Raise ``FederationError`` if fewer nodes take part than must hide each other."""
        if self._is_on and nodes < self._fewest:
            raise FederationError(
                f"federation.secure_sums=on needs {self._fewest} nodes or more in each round "
                f"(federation.secure_sums_nodes), found {nodes}"
            )

    # --- before training ---------------------------------------------------------------------------

    def before_training(self, nodes: list[Node], exchange: Exchange) -> list[Node]:
        """Exchange keys and shares, and return the nodes that have dealt.

        Raises:
            FederationError: If fewer remain than are needed.
        """
        if not self._is_on:
            return nodes
        keys = self._keys(nodes, exchange)
        group = self._group({node: keys[node.index] for node in nodes if node.index in keys}, exchange)
        by_index = {node.index: node for node in nodes}
        sums = {name: exchange.sums[name] for name in exchange.declared}
        around = _Round(Dealt(group), by_index, sums, sum(len(key) for both in keys.values() for key in both))
        self._deal([by_index[index] for index in group.nodes], around, exchange)
        around.nodes = {index: by_index[index] for index in around.dealt.dealers}
        self._round = around
        return list(around.nodes.values())

    def train_options(self, node: Node, training: Training) -> dict[str, Any]:
        """Return the shares for a node, and how its vector is made."""
        around = self._round
        if not self._is_on or around is None:
            return {}
        others, texts, digests = around.dealt.for_node(node.index)
        around.bytes_down += sum(map(len, (*texts, *digests)))
        return {
            wire.SECURE_NODES: others, wire.SECURE_TEXTS: texts, wire.SECURE_DIGESTS: digests,
            wire.SECURE_FACTORS: [around.factors[node.index]], wire.SECURE_TERMS: list(self._terms()),
            wire.SECURE_SUMS: written(around.sums), wire.SECURE_MOST: around.most.tolist(),
            wire.SECURE_IMAGES: around.most_images,
        }  # fmt: skip

    # --- after training ----------------------------------------------------------------------------

    def gather(
        self, asked: Mapping[int, Node], replies: list[Message], exchange: Exchange, sent: SentWeights
    ) -> Sifted | None:
        """Return one update that stands for all nodes whose vectors arrived, and why others are not in it.

        Raises:
            FederationError: If too few vectors or shares arrived, or the sum is out of the run's bounds.
        """
        if not self._is_on or self._round is None:
            return None
        around = self._round
        layout = self._layout(sent.arrays, exchange)
        total, arrived, problems = empty(layout.size), [], []
        waiting = dict(asked)
        for reply in sorted(replies, key=lambda reply: asked[reply.metadata.src_node_id].index):
            node = waiting.pop(reply.metadata.src_node_id)
            try:
                vector = self._vector(node, reply, layout, exchange)
            except Refused as refused:
                problems.append((node, str(refused)))
            else:
                total += vector
                arrived.append(node)
            checks.let_go(reply)
        problems += [(node, checks.NO_ANSWER) for node in waiting.values()]
        problems.sort(key=lambda problem: problem[0].index)
        needed = around.dealt.group.threshold
        if len(arrived) < needed:
            raise FederationError(
                f"round {exchange.result.server_round}: secure sums: {len(arrived)} of {len(asked)} nodes delivered, "
                f"{needed} are needed: {by_reason(problems)}"
            )
        total = self._unmasked(total, arrived, exchange, protocol.digest_of(sent.arrays))
        try:
            update = self._update(layout.values(total, len(arrived)), arrived, sent, exchange)
        except Refused as refused:
            raise FederationError(
                f"round {exchange.result.server_round}: {TOGETHER}: {refused}; a sum does not tell whose fault it is"
            ) from None
        exchange.result.shown[self.key] = {
            "nodes": len(arrived), "threshold": needed, "error": self._error(layout, arrived),
            "bytes_up": around.bytes_up, "bytes_down": around.bytes_down,
        }  # fmt: skip
        self._round = None
        return Sifted([update], problems, 0, len(replies))

    def weights(self, updates: list[Update], training: Training) -> list[float] | None:
        """Return 1 for the one update that stands for a sum."""
        return [1.0] if self._is_on and len(updates) == 1 and updates[0].members else None

    # --- parts -------------------------------------------------------------------------------------

    def _keys(self, nodes: list[Node], exchange: Exchange) -> dict[int, tuple[bytes, bytes]]:
        """Return the public keys of the nodes that answer, for encryption and for masks, by index."""
        keys: dict[int, tuple[bytes, bytes]] = {}
        for node, said in self._asked({node: {wire.SECURE_STAGE: protocol.KEYS} for node in nodes}, exchange):
            own = _bytes(said, wire.SECURE_KEYS)
            if [len(key) for key in own] == [crypto.PUBLIC_BYTES] * 2:
                keys[node.index] = own[0], own[1]
            else:
                exchange.leave_out(node, f"secure sums: {wire.SECURE_KEYS} are no two public keys")
        return keys

    def _group(self, keys: Mapping[Node, tuple[bytes, bytes]], exchange: Exchange) -> Group:
        """Return what is sent to all nodes: keys and weights of those that weigh something."""
        present = sorted(keys, key=lambda node: node.index)
        self._check_left(len(present), self._fewest, "sent keys")
        weights = exchange.weigh(present)
        order = [(node, weight / max(weights)) for node, weight in zip(present, weights, strict=True) if weight > 0]
        return Group(
            exchange.result.server_round, tuple(node.index for node, _ in order),
            tuple(keys[node][0] for node, _ in order), tuple(keys[node][1] for node, _ in order),
            tuple(factor for _, factor in order), self._fewest,
        )  # fmt: skip

    def _deal(self, nodes: list[Node], around: _Round, exchange: Exchange) -> None:
        """Let nodes deal their shares.

        Raises:
            FederationError: If fewer do than are needed.
        """
        group = around.dealt.group
        question = {
            wire.SECURE_STAGE: protocol.SHARES, wire.SECURE_NODES: list(group.nodes),
            wire.SECURE_KEYS: list(group.cipher_keys), wire.SECURE_MASK_KEYS: list(group.mask_keys),
            wire.SECURE_FACTORS: list(group.factors),
        }  # fmt: skip
        around.bytes_down += 2 * crypto.PUBLIC_BYTES * len(nodes) ** 2
        for node, said in self._asked(dict.fromkeys(nodes, question), exchange):
            texts, digests = _bytes(said, wire.SECURE_TEXTS), _bytes(said, wire.SECURE_DIGESTS)
            seed = said.get(wire.SECURE_SEED)
            try:
                around.dealt.take(node.index, texts, digests, seed if isinstance(seed, bytes) else b"")
            except Refused as refused:
                exchange.leave_out(node, f"secure sums: {refused}")
            else:
                around.bytes_up += sum(map(len, (*texts, *digests))) + crypto.DIGEST_BYTES
        self._check_left(len(around.dealt.dealers), group.threshold, "dealt their shares")

    def _asked(
        self, questions: dict[Node, dict[str, Any]], exchange: Exchange
    ) -> Iterator[tuple[Node, Mapping[str, Any]]]:
        """Yield each node that answers a question with what it says; others are left out."""
        waiting = {node.node_id: node for node in questions}
        for reply in exchange.ask(questions):
            node = waiting.pop(reply.metadata.src_node_id)
            try:
                content = checks.opened(reply, (wire.CONFIG, wire.METRICS))
                said = content.get(wire.CONFIG)
                if not isinstance(said, ConfigRecord):
                    raise Refused(f"the reply lacks the record {wire.CONFIG!r}")
            except Refused as refused:
                exchange.leave_out(node, f"secure sums: {refused}")
                continue
            yield node, said
        for node in waiting.values():
            exchange.leave_out(node, checks.NO_ANSWER, lost=True)

    def _vector(self, node: Node, reply: Message, layout: Layout, exchange: Exchange) -> crypto.Residues:
        """Return the masked vector of a reply; raise ``Refused`` where it is none."""
        content: RecordDict = checks.opened(reply, (wire.ARRAYS, wire.KNOWLEDGE, wire.METRICS))
        metrics = checks.metrics_of(content)
        known: dict[str, checks.Range] = {}
        checks.trained(metrics, node.num_examples, (), known)
        record = array_record(content, wire.ARRAYS)
        arrays = decode(record) if record is not None else {}
        vector = arrays.get(wire.MASKED)
        if list(arrays) != [wire.MASKED] or vector is None:
            raise Refused(f"the reply lacks the one array {wire.MASKED!r} of a secure sum")
        if vector.shape != (layout.size,) or vector.dtype != np.uint32:
            raise Refused(f"{wire.MASKED} has shape {vector.shape} and type {vector.dtype}, expected "
                          f"({layout.size},) and uint32")  # fmt: skip
        exchange.observe(node, metrics)
        exchange.result.bytes_up += vector.nbytes
        return vector

    def _unmasked(
        self, total: crypto.Residues, arrived: list[Node], exchange: Exchange, weights: bytes
    ) -> crypto.Residues:
        around = self._round
        assert around is not None
        alive = [node.index for node in arrived]
        unmasking = Unmasking(around.dealt, alive)
        question = {
            wire.SECURE_STAGE: protocol.UNMASK, wire.SECURE_ALIVE: alive, wire.SECURE_LOST: unmasking.lost,
        }  # fmt: skip
        for node, said in self._asked(dict.fromkeys(arrived, question), exchange):
            shares = _bytes(said, wire.SECURE_REVEALED)
            around.bytes_up += sum(map(len, shares))
            try:
                unmasking.take(node.index, shares)
            except Refused as refused:
                exchange.leave_out(node, f"secure sums: {refused}")
        for index, why in sorted(unmasking.wrong.items()):
            exchange.leave_out(around.nodes[index], f"secure sums: {why}; its shares are not used, its vector is")
        try:
            return unmasking.unmasked(total, weights)
        except FederationError as error:
            raise FederationError(f"round {exchange.result.server_round}: {error}") from None

    def _update(self, sums: Arrays, arrived: list[Node], sent: SentWeights, exchange: Exchange) -> Update:
        """Return the update that stands for the nodes, checked as that of a node is."""
        assert self._round is not None
        federation = self.run.config.federation
        weight = self._round.weight(arrived)
        arrays: Arrays = {}
        for name, base in sent.arrays.items():
            moved = base.astype(np.float64) + sums[WEIGHTS + name] / weight
            arrays[name] = (moved if base.dtype.kind == "f" else np.rint(moved)).astype(base.dtype)
        knowledge = self._knowledge(sums, arrived, exchange)
        announced = np.array([node.class_counts for node in arrived], np.int64).sum(axis=0).tolist()
        check_contribution(knowledge, exchange.declared, exchange.sizes, announced, federation.max_value)
        metrics = {
            name.removeprefix(LOSSES): float(value) / float(sums[REPORTS + name.removeprefix(LOSSES)])
            for name, value in sums.items()
            if name.startswith(LOSSES) and sums[REPORTS + name.removeprefix(LOSSES)] > 1e-3
        }
        images = sum(node.num_examples for node in arrived)
        return Update(
            arrived[0], encode(arrays), knowledge, images, metrics, sent.check(arrays), tuple(arrived)
        )  # fmt: skip

    def _knowledge(self, sums: Arrays, arrived: list[Node], exchange: Exchange) -> Arrays:
        """Return the mean of each contribution, as its kind of sum says."""
        assert self._round is not None
        counts = sums.get(KNOWLEDGE + COUNTS, np.zeros(0))
        knowledge: Arrays = {}
        for name in exchange.declared:
            total, how = sums[KNOWLEDGE + name], self._round.sums[name]
            if name == COUNTS:
                knowledge[name] = total
                continue
            if how in ("images", "nodes"):
                rows = counts / self._round.most if how == "images" else counts.astype(np.float64)
                rows = rows.reshape(-1, *(1,) * (total.ndim - 1))
                total = np.where(rows > 0, total / np.where(rows > 0, rows, 1), 0)
            elif how == "each":
                total = total / len(arrived)
            knowledge[name] = total.astype(np.float32)
        return knowledge

    def _layout(self, weights: Mapping[str, Any], exchange: Exchange) -> Layout:
        assert self._round is not None
        sizes, federation = exchange.sizes, self.run.config.federation
        for name, shape in exchange.declared.items():
            if any(isinstance(part, str) and part not in sizes for part in shape):
                raise FederationError(f"secure sums: how large {name} is, each node decides; a sum needs the same size")
        shapes = {
            name: tuple(sizes[part] if isinstance(part, str) else part for part in shape)
            for name, shape in exchange.declared.items()
        }
        return layout_of(
            weights, shapes, self._terms(), federation.secure_sums_range,
            len(self._round.dealt.group.nodes),
        )  # fmt: skip

    def _terms(self) -> tuple[str, ...]:
        return (wire.LOSS, *(wire.LOSS_TERM + term for term in self.run.model.terms))

    def _check_left(self, number: int, needed: int, did: str) -> None:
        if number < needed:
            raise FederationError(f"secure sums: {number} nodes {did}, {needed} are needed")

    def _error(self, layout: Layout, arrived: list[Node]) -> float:
        """Return by how much rounding moves a weight at most."""
        assert self._round is not None
        return len(arrived) * layout.error(self.run.config.federation.secure_sums_range) / self._round.weight(arrived)


def _bytes(said: Mapping[str, Any], name: str) -> list[bytes]:
    """Return a list of bytes that a node sends; an empty one where it is none."""
    value = said.get(name)
    return value if isinstance(value, list) and all(isinstance(part, bytes) for part in value) else []
