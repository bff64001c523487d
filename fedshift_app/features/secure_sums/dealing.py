"""One secure sum on the server: keys and shares before it, the vectors that arrive, and the shares that unmask it.

What is summed, and what becomes of the sum, is in :mod:`fedshift_app.features.secure_sums.server`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Message

from fedshift_app.features.secure_sums.replies import Keys, stated, texts_of, vector_of
from fedshift_core.errors import FederationError, FedShiftError
from fedshift_core.limits import Refused
from fedshift_core.plural import plural
from fedshift_core.run_settings import RunSettings
from fedshift_core.secure import crypto, protocol
from fedshift_core.secure.group import ANSWERS, Group
from fedshift_core.secure.layout import Layout
from fedshift_core.secure.recovery import Dealt, Unmasking, empty
from fedshift_core.secure.statement import Statement, check_effective, check_rows
from fedshift_core.wire import names as wire
from fedshift_strategies import weighting
from fedshift_strategies.features.base import LeaveOut
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.updates import by_reason

Ask = Callable[[dict[Node, dict[str, Any]]], list[Message]]
Problem = tuple[Node, str]


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
    problems: list[Problem]


class Dealing:
    """A secure sum on its way.

    Args:
        server_round: The round.
        purpose: What is summed, of ``group.PURPOSES``.
        config: Of the run.
        alike: Whether nodes weigh the same by the method's own rule.
        ask: Sends each node its own question, and returns the answers.
        leave_out: Is handed each node whose answer is not used, why, and whether it is ``lost``.

    Attributes:
        nodes: The nodes that have dealt, by index.
        bytes_up: Bytes of the answers to questions.
        bytes_down: Bytes of these questions, and of shares in messages about work.
        ahead: Keys for the next round that came with the shares that unmask the sum, by the node's index.
    """

    def __init__(
        self, server_round: int, purpose: str, config: RunSettings, ask: Ask, leave_out: LeaveOut, *, alike: bool
    ) -> None:
        self._round, self._purpose, self._config, self._alike = server_round, purpose, config, alike
        self._ask, self._leave_out = ask, leave_out
        self._put_off: list[tuple[Node, str, bool]] | None = None
        self._refused: list[Problem] = []
        self.ahead: dict[int, Keys] = {}
        self.nodes: dict[int, Node] = {}
        self.bytes_up = self.bytes_down = 0

    def begin(self, nodes: list[Node], ahead: Mapping[int, Keys] | None = None) -> None:
        """Exchange keys and shares.

        A node that was started anew has lost the keys that it sent ahead. So where one of those that did fails to deal,
        all are asked for other keys and deal again; no vector is masked by then.

        Args:
            nodes: Those of the round.
            ahead: Keys that nodes have sent already, by index.

        Raises:
            FederationError: If fewer nodes deal than are needed, or those that do would not hide each other.
        """
        known = {node.index: ahead[node.index] for node in nodes if ahead and node.index in ahead}
        if not (known and self._all_dealt(nodes, known)):
            self._exchange(nodes, {})
        self._check_left(len(self.nodes), self._dealt.group.threshold, "dealt their shares")

    def _all_dealt(self, nodes: list[Node], known: Mapping[int, Keys]) -> bool:
        """Exchange with keys that were sent ahead; return whether all nodes that sent some have dealt."""
        put_off: list[tuple[Node, str, bool]] = []
        self._put_off = put_off
        try:
            self._exchange(nodes, known)
        finally:
            self._put_off = None
            all_dealt = not any(node.index in known for node, _, _ in put_off)
            if all_dealt:
                for node, why, lost in put_off:
                    self._leave_out(node, why, lost=lost)
        return all_dealt

    def _exchange(self, nodes: list[Node], known: Mapping[int, Keys]) -> None:
        """Ask for the keys that are not known, and let nodes deal."""
        keys = {**known, **self._keys([node for node in nodes if node.index not in known])}
        self.bytes_up += sum(2 * crypto.PUBLIC_BYTES + len(own.statement) for own in keys.values())
        keys = self._of_one(nodes, self._as_announced(nodes, keys))
        present = [node for node in sorted(nodes, key=lambda node: node.index) if node.index in keys]
        self._check_left(len(present), self._config.federation.secure_sums_nodes, "sent keys")
        self._dealt = Dealt(self._group(present, keys))
        by_index = {node.index: node for node in nodes}
        self._deal([by_index[index] for index in self._dealt.group.nodes], keys)
        self.nodes = {index: by_index[index] for index in self._dealt.dealers}

    @property
    def number(self) -> int:
        """How many nodes vectors are made for."""
        return len(self._dealt.group.nodes)

    @property
    def threshold(self) -> int:
        """How many vectors and shares are needed."""
        return self._dealt.group.threshold

    def options(self, node: Node) -> dict[str, Any]:
        """Return the shares for a node, which go with the message about work."""
        others, texts, digests = self._dealt.for_node(node.index)
        self.bytes_down += sum(map(len, (*texts, *digests)))
        return {wire.SECURE_NODES: others, wire.SECURE_TEXTS: texts, wire.SECURE_DIGESTS: digests}

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What the nodes of the sum state of their images."""
        return self._dealt.group.statements

    def weight(self, nodes: Iterable[Node]) -> float:
        """Return the sum of what the numbers of nodes are multiplied by."""
        factors = dict(zip(self._dealt.group.nodes, self._dealt.group.factors, strict=True))
        return sum(factors[node.index] for node in nodes)

    def added(
        self, asked: Mapping[int, Node], replies: Iterable[Message], layout: Layout, record: str,
        read: Callable[[Node, Message], Mapping[str, Any]], observe: Callable[[Node, Mapping[str, Any]], None],
    ) -> Added:  # fmt: skip
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
                metrics = read(node, reply)
                vector = vector_of(reply, record, layout)
            except Refused as refused:
                added.problems.append((node, str(refused)))
            else:
                observe(node, metrics)
                np.add(added.total, vector, out=added.total)
                added.nodes.append(node)
            checks.let_go(reply)
        added.problems.extend((node, checks.NO_ANSWER) for node in waiting.values())
        added.problems.sort(key=lambda problem: problem[0].index)
        if len(added.nodes) < self.threshold:
            raise FederationError(
                f"round {self._round}: secure sums: {len(added.nodes)} of {plural(len(asked), 'node')} delivered, "
                f"{self.threshold} are needed: {by_reason(added.problems)}"
            )
        return added

    def unmasked(self, added: Added, sent: bytes, *, rows: bool = False) -> crypto.Residues:
        """Ask for the shares that take the masks off, and return the sum without them.

        Args:
            added: The masked sum.
            sent: The digest of what all nodes were sent alike.
            rows: Whether it has rows of single classes.

        Raises:
            FederationError: If too few shares arrive, or the sum would not hide each node in it.
        """
        self._check_arrived(added, rows=rows)
        alive, before = [node.index for node in added.nodes], len(self._refused)
        unmasking = Unmasking(self._dealt, alive)
        question = {wire.SECURE_ALIVE: alive, wire.SECURE_LOST: unmasking.lost}
        for node, said in self._asked(protocol.UNMASK, dict.fromkeys(added.nodes, question)):
            shares = texts_of(said, wire.SECURE_REVEALED)
            if (following := Keys.of(said)) is not None:
                self.ahead[node.index] = following
            self.bytes_up += sum(map(len, shares))
            try:
                unmasking.take(node.index, shares)
            except Refused as refused:
                self._leave_out(node, f"secure sums: {refused}")
        for index, why in sorted(unmasking.wrong.items()):
            self._leave_out(self.nodes[index], f"secure sums: {why}; its shares are not used, its vector is")
        try:
            return unmasking.unmasked(added.total, sent)
        except FederationError as error:
            raise FederationError(f"round {self._round}: {error}", by_reason(self._refused[before:])) from None

    # --- parts -------------------------------------------------------------------------------------

    def _check_arrived(self, added: Added, *, rows: bool) -> None:
        """Refuse a sum that the nodes would refuse to unmask.

        Raises:
            FederationError: With why, and who is not in it.
        """
        group, arrived = self._dealt.group, {node.index for node in added.nodes}
        places = [place for place, index in enumerate(group.nodes) if index in arrived]
        try:
            check_effective([group.factors[place] for place in places], group.least)
            if rows:
                check_rows(group.statements, [group.statements[place] for place in places])
        except FedShiftError as error:
            why = f"; not in it: {by_reason(added.problems)}" if added.problems else ""
            raise FederationError(f"round {self._round}: secure sums: {error}{why}") from None

    def _drop(self, node: Node, why: str, *, lost: bool = False) -> None:
        """Leave a node out, unless nodes may yet be asked again."""
        self._refused.append((node, why))
        if self._put_off is None:
            self._leave_out(node, why, lost=lost)
        else:
            self._put_off.append((node, why, lost))

    def _keys(self, nodes: list[Node]) -> dict[int, Keys]:
        """Return the keys of the nodes that answer, by index."""
        keys: dict[int, Keys] = {}
        if not nodes:
            return keys
        for node, said in self._asked(protocol.KEYS, {node: {} for node in nodes}):
            own = Keys.of(said)
            if own is None:
                self._drop(node, f"secure sums: {wire.SECURE_KEYS} are not two different public keys, with a statement")
            else:
                keys[node.index] = own
        return keys

    def _of_one(self, nodes: list[Node], keys: Mapping[int, Keys]) -> dict[int, Keys]:
        """Return the keys of nodes of which no other one has sent a key; nodes refuse a sum with a key of two."""
        times = Counter(key for own in keys.values() for key in own.public)
        twice = {index for index, own in keys.items() if any(times[key] > 1 for key in own.public)}
        for node in nodes:
            if node.index in twice:
                self._drop(node, "secure sums: another node sent the same public key")
        return {index: own for index, own in keys.items() if index not in twice}

    def _as_announced(self, nodes: list[Node], keys: Mapping[int, Keys]) -> dict[int, Keys]:
        """Return the keys of nodes that state what they announced before round 1, by which they are averaged."""
        right = {
            node.index for node in nodes if node.index in keys and keys[node.index].statement == stated(node).written()
        }
        for node in nodes:
            if node.index in keys and node.index not in right:
                self._drop(node, "secure sums: it states other images than it announced before round 1")
        return {index: keys[index] for index in right}

    def _group(self, present: list[Node], keys: Mapping[int, Keys]) -> Group:
        """Return what all nodes go by alike.

        Raises:
            FederationError: If these nodes would not hide each other.
        """
        federation, order = self._config.federation, [keys[node.index] for node in present]
        statements = tuple(map(stated, present))
        group = Group(
            self._round, tuple(node.index for node in present), tuple(own.public[0] for own in order),
            tuple(own.public[1] for own in order), statements,
            weighting.factors(self._config, statements, self._purpose, alike=self._alike),
            federation.secure_sums_nodes, federation.secure_sums_least, self._purpose,
            tuple(own.signed[0] for own in order) if any(own.signed[0] for own in order) else (),
        )  # fmt: skip
        check_hides(self._config, group.factors, self._purpose)
        return group

    def _deal(self, nodes: list[Node], keys: Mapping[int, Keys]) -> None:
        """Let nodes deal their shares."""
        group = self._dealt.group
        question: dict[str, Any] = {
            wire.SECURE_NODES: list(group.nodes), wire.SECURE_KEYS: list(group.cipher_keys),
            wire.SECURE_MASK_KEYS: list(group.mask_keys),
            wire.SECURE_STATEMENTS: [statement.written() for statement in group.statements],
        }  # fmt: skip
        signed = [part for index in group.nodes for part in keys[index].signed]
        if any(signed):
            question[wire.SECURE_SIGNED] = signed
        self.bytes_up += sum(map(len, signed))
        sent = sum(map(len, (*question[wire.SECURE_STATEMENTS], *signed)))
        self.bytes_down += (2 * crypto.PUBLIC_BYTES * len(nodes) + sent) * len(nodes)
        for node, said in self._asked(protocol.SHARES, dict.fromkeys(nodes, question)):
            texts, digests = texts_of(said, wire.SECURE_TEXTS), texts_of(said, wire.SECURE_DIGESTS)
            seed = said.get(wire.SECURE_SEED)
            try:
                self._dealt.take(node.index, texts, digests, seed if isinstance(seed, bytes) else b"")
            except Refused as refused:
                self._drop(node, f"secure sums: {refused}")
            else:
                self.bytes_up += sum(map(len, (*texts, *digests))) + crypto.DIGEST_BYTES

    def _asked(
        self, stage: str, questions: Mapping[Node, Mapping[str, Any]]
    ) -> Iterator[tuple[Node, Mapping[str, Any]]]:
        """Yield each node that answers a question of a stage with what it says; others are left out."""
        head = {wire.SECURE_STAGE: stage, wire.SECURE_PURPOSE: self._purpose}
        waiting = {node.node_id: node for node in questions}
        for reply in self._ask({node: {**head, **question} for node, question in questions.items()}):
            node = waiting.pop(reply.metadata.src_node_id)
            try:
                said = checks.config_of(checks.opened(reply, (wire.CONFIG,)))
            except Refused as refused:
                self._drop(node, f"secure sums: {refused}", lost=checks.is_lost(str(refused)))
                continue
            yield node, said
        for node in waiting.values():
            self._drop(node, checks.NO_ANSWER, lost=True)

    def _check_left(self, number: int, needed: int, did: str) -> None:
        if number < needed:
            raise FederationError(f"secure sums: {plural(number, 'node')} {did}, {needed} are needed")


def check_hides(config: RunSettings, factors: Sequence[float], purpose: str) -> None:
    """Refuse weights by which too few nodes would hide each other.

    Raises:
        FederationError: With the number found, and what helps.
    """
    try:
        check_effective(factors, config.federation.secure_sums_least)
    except FedShiftError as error:
        alike = "aggregation.weights=equal where weights are averaged"
        if purpose == ANSWERS:
            alike = "a smaller evaluate.bn_images, by which BatchNorm's statistics weigh"
        why = str(error).removeprefix("refused: ")
        raise FederationError(
            f"secure sums ({purpose}): {why}; what helps: {alike}, more nodes, or a lower key if their owners allow it"
        ) from None
