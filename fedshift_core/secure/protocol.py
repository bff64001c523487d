"""What all nodes of a round agree on, and a node's part in it. SecAgg+ [Bell et al., 2020; Bonawitz et al., 2017].

Papers: "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, https://eprint.iacr.org/2020/704;
"Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, https://eprint.iacr.org/2017/281. The
graph of neighbours is the full one, in which both are the same.

Symbols: n nodes of a round, t threshold, x_i the vector of node i, b_i the seed of its own mask, s_ij what nodes i and
j agree on, PRG the key stream of ``crypto.add_mask``; all sums are modulo 2^32.

    y_i = x_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij)

Of the nodes whose y arrived, t nodes give the server shares of b_i; of those whose y did not, shares of the private key
behind s_ij. A node gives one of both, once. A server that tells nodes different things of node i collects n shares of
both kinds in all, and c more where c nodes work with it, as these give both. It needs 2 t for x_i. So t is more than
two thirds of n (:func:`threshold`): with c < 2 t - n, and so with up to a third of the nodes, it gets no x_i.

Stages: ``keys`` (each node's two public keys), ``shares`` (all keys to each node; its shares, encrypted, to the
server), training (y), ``unmask``. Everything is of one sum: keys, seeds and shares are drawn anew and wiped.

What is added to the papers: a node commits to each share by its SHA-256, so that who gives a wrong one is known; and
s_ij depends on the digest of what the server sent all nodes (:class:`Group`), of the shared weights that it sent, and
of how it said that vectors are made, so that if two nodes are sent different things, their masks do not cancel (against
weights that make all updates but one vanish [Pasquini et al., "Eluding Secure Aggregation in Federated Learning via
Model Inconsistency", CCS 2022]). By what vectors are multiplied, and which classes are in them, follows from what all
nodes state of their images (:mod:`fedshift_core.secure.statement`); a sum of too few is not unmasked, and one of the
same weights not over two sets of nodes, whose difference would be that of single ones.

A round may have two sums, one after the other (``PURPOSES``). Each has keys, seeds and shares of its own.
"""

import hashlib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core.errors import ForgottenError, RequestError
from fedshift_core.secure import crypto
from fedshift_core.secure.crypto import Residues
from fedshift_core.secure.group import PURPOSES, SECRET, SEED, TRAINING, Group, pack_shares, share_digest, unpack_shares
from fedshift_core.secure.statement import Statement, check_effective, check_rows, largest, summed
from fedshift_core.wire import names as wire

KEYS, SHARES, TRAIN, UNMASK, DONE = "keys", "shares", "train", "unmask", "done"
#: How vectors are made, by key of a message to train: which all nodes must get alike.
COMMON = (wire.SECURE_SUMS, wire.SECURE_TERMS)
#: Takes what is summed and over which nodes, and notes it; or returns the first that was summed over others before.
Once = Callable[[Sequence[bytes], bytes], bytes | None]


@dataclass(frozen=True)
class State:
    """What a node keeps between the messages of a sum; of one that is over its first four values.

    Attributes:
        run: Names the run.
        round: The round.
        purpose: What is summed.
        stage: The one that the node is at.
        cipher_secret: Private key for encryption.
        mask_secret: Private key for masks.
        seed: Of the node's own mask.
        group: Digest of what the server sent all nodes.
        nodes: Of the group.
        cipher_keys: Their public keys for encryption.
        mask_keys: Their public keys for masks.
        statements: What they state of their images, as it travels.
        factors: By what their numbers are multiplied.
        members: Who each of them is.
        threshold: How many are needed.
        classes: Number of classes.
        least: Least effective number of nodes.
        sources: Nodes whose shares the node has, itself first.
        seed_shares: Theirs; empty of those that were wrong.
        secret_shares: Likewise.
        weights: Digest of the weights of the vector that was masked.
        contributed: Digest of each array in it that tells of the node's images.
        rows: Whether it has rows of single classes.
    """

    run: str = ""
    round: int = 0
    purpose: str = TRAINING
    stage: str = ""
    cipher_secret: bytes = b""
    mask_secret: bytes = b""
    seed: bytes = b""
    group: bytes = b""
    nodes: Sequence[int] = ()
    cipher_keys: Sequence[bytes] = ()
    mask_keys: Sequence[bytes] = ()
    statements: Sequence[bytes] = ()
    factors: Sequence[float] = ()
    members: Sequence[bytes] = ()
    threshold: int = 0
    classes: int = 0
    least: float = 0.0
    sources: Sequence[int] = ()
    seed_shares: Sequence[bytes] = ()
    secret_shares: Sequence[bytes] = ()
    weights: bytes = b""
    contributed: Sequence[bytes] = ()
    rows: bool = False

    @property
    def stated(self) -> list[Statement]:
        """The statements of the nodes of the group."""
        return [Statement.read(data, self.classes) for data in self.statements]

    def check_sum(self, alive: set[int], once: Once) -> None:
        """Refuse a sum over these nodes that would tell of single ones, alone or with one that was unmasked before."""
        if len(alive) < self.threshold:
            raise RequestError(f"refused: nodes in the sum: {len(alive)}, {self.needed}")
        places = [place for place, node in enumerate(self.nodes) if node in alive]
        check_effective([self.factors[place] for place in places], self.least)
        if self.rows:
            check_rows(self.stated, [self.stated[place] for place in places])
        over = crypto.digest("over", *(self.members[place] for place in places))
        summed = [crypto.digest("summed", self.purpose, what) for what in (self.weights, *self.contributed) if what]
        if (before := once(summed, over)) is None:
            return
        what, others = "the same sums of this node's images", ""  # whatever weights were sent
        if self.weights and before == summed[0]:
            what, others = "the same weights", ", another checkpoint or another seed"
        raise RequestError(
            f"refused: {what} were summed over other nodes before, and the difference tells of single ones: take all "
            f"nodes of then{others}"
        )

    @property
    def needed(self) -> str:
        """The number of nodes that a sum needs, for messages."""
        return (
            f"needed: {self.threshold} (more than two thirds of the round's {len(self.nodes)}, "
            "federation.secure_sums_nodes at least)"
        )


class Member:
    """A node in a round.

    Args:
        state: What it keeps between messages (:class:`State`); changed in place.
        index: The node's.
        purpose: What is summed, of ``PURPOSES``.
    """

    def __init__(self, state: MutableMapping[str, Any], index: int, purpose: str = TRAINING) -> None:
        self._state, self._index, self._purpose = state, index, purpose

    @property
    def _at(self) -> State:
        return State(**self._state)

    def keys(self, run: str, server_round: int) -> tuple[bytes, bytes]:
        """Draw the keys of a round and return the public ones: for encryption, for masks.

        Args:
            run: Names the run.
            server_round: The round.

        Raises:
            RequestError: If the node has taken part in the sum before, or in a later one: two sums that differ in one
                node tell it.
        """
        at, asked = self._at, (server_round, PURPOSES.index(self._purpose))
        if at.run == run and asked <= (at.round, PURPOSES.index(at.purpose)):
            raise RequestError(
                f"refused: keys of round {server_round} ({self._purpose}), as this node has given keys of round "
                f"{at.round} ({at.purpose}): what is in a sum leaves a node once"
            )
        secrets = crypto.new_secret(), crypto.new_secret()
        self._state.clear()
        self._state.update(
            run=run,
            round=server_round,
            purpose=self._purpose,
            stage=KEYS,
            cipher_secret=secrets[0],
            mask_secret=secrets[1],
        )
        return crypto.public_of(secrets[0]), crypto.public_of(secrets[1])

    def deal(self, group: Group) -> tuple[list[bytes], list[bytes], bytes]:
        """Return the node's shares for the others, encrypted, in their order; its commitments; that to its seed.

        The commitments are two for each node of the group, itself included: to the share of the seed, to that of the
        private key.

        Raises:
            RequestError: If this is not the next message of the round, or the group is not to be trusted.
        """
        at = self._expect(KEYS, group.server_round)
        group.check()
        own = self._index, crypto.public_of(at.cipher_secret), crypto.public_of(at.mask_secret)
        members = list(zip(group.nodes, group.cipher_keys, group.mask_keys, strict=True))
        if own not in members:
            raise RequestError("refused: this node's keys are not among those of the secure sum")
        place, seed = members.index(own), crypto.new_seed()
        seeds, secrets = (crypto.shares_of(hidden, group.threshold, len(members)) for hidden in (seed, at.mask_secret))
        texts, digests = [], []
        for (node, key, _), of_seed, of_secret in zip(members, seeds, secrets, strict=True):
            digests += [
                share_digest(kind, self._index, node, of) for kind, of in ((SEED, of_seed), (SECRET, of_secret))
            ]
            if node != self._index:
                text = pack_shares(self._index, node, of_seed, of_secret)
                texts.append(crypto.encrypted(crypto.agreed(at.cipher_secret, key), text))
        self._state.update(
            stage=SHARES,
            seed=seed,
            group=group.digest(),
            nodes=list(group.nodes),
            mask_keys=list(group.mask_keys),
            cipher_keys=list(group.cipher_keys),
            threshold=group.threshold,
            sources=[self._index],
            seed_shares=[seeds[place]],
            secret_shares=[secrets[place]],
            factors=list(group.factors),
            statements=[statement.written() for statement in group.statements],
            classes=len(group.statements[place].classes),
            least=group.least,
            members=group.members(),
        )
        return texts, digests, crypto.digest("own", self._index, seed)

    def receive(
        self, server_round: int, sources: Sequence[int], texts: Sequence[bytes], digests: Sequence[bytes]
    ) -> list[int]:
        """Take in the shares of the other nodes and return whose are not what they should be.

        Args:
            server_round: The round.
            sources: The other nodes that have dealt, rising.
            texts: What each has encrypted for this one.
            digests: Two for each: its commitments to both shares of this node.

        Raises:
            RequestError: If this is not the next message of the round, or too few nodes have dealt.
        """
        at = self._expect(SHARES, server_round)
        known = {*sources} <= {*at.nodes} - {self._index} and list(sources) == sorted({*sources})
        if not known or not len(sources) == len(texts) == len(digests) / 2:
            raise RequestError("refused: secure sums need the shares of the round's other nodes, each once")
        if len(sources) + 1 < at.threshold:
            raise RequestError(f"refused: nodes that have dealt shares: {len(sources) + 1}, {at.needed}")
        keys = dict(zip(at.nodes, at.cipher_keys, strict=True))
        pairs = [
            unpack_shares(crypto.decrypted(crypto.agreed(at.cipher_secret, keys[source]), text), source, self._index)
            for source, text in zip(sources, texts, strict=True)
        ]
        bad = []
        for place, (source, (seed, secret)) in enumerate(zip(sources, pairs, strict=True)):
            committed = [share_digest(kind, source, self._index, of) for kind, of in ((SEED, seed), (SECRET, secret))]
            if committed != list(digests[2 * place : 2 * place + 2]):
                bad.append(source)
                pairs[place] = b"", b""
        self._state.update(
            stage=TRAIN,
            sources=[*at.sources, *sources],
            seed_shares=[*at.seed_shares, *(seed for seed, _ in pairs)],
            secret_shares=[*at.secret_shares, *(secret for _, secret in pairs)],
        )
        return bad

    def mask(
        self,
        vector: Residues,
        sent: bytes = b"",
        *,
        weights: bytes = b"",
        contributed: Sequence[bytes] = (),
        rows: bool = False,
    ) -> Residues:
        """Add the node's masks to its vector, in place, and return it.

        Args:
            vector: The node's.
            sent: The digest of the shared weights and of what else the node was sent (:func:`digest_of`).
            weights: The digest of the weights alone; empty where none are shared.
            contributed: Digests of arrays in the vector that may be summed over the same nodes alone, too
                (:func:`digests_of`): they need not change with the weights.
            rows: Whether the vector has rows of single classes.

        Raises:
            RequestError: If the shares of this round have not been received, or the vector was masked before.
        """
        at = self._at
        if (at.stage, at.purpose) != (TRAIN, self._purpose):
            raise RequestError("refused: a vector is masked once in a round, after its shares are there")
        keys = dict(zip(at.nodes, at.mask_keys, strict=True))
        crypto.add_mask(vector, at.seed)
        for other in at.sources[1:]:
            key = pair_key(at.mask_secret, keys[other], at.group + sent)
            crypto.add_mask(vector, key, minus=other < self._index)
        self._state.update(stage=UNMASK, weights=weights, contributed=list(contributed), rows=rows)
        return vector

    def reveal(
        self, server_round: int, alive: Sequence[int], lost: Sequence[int], once: Once = lambda what, over: None
    ) -> list[bytes]:
        """Return a share of each node: of its seed where its vector arrived, else of its private key; then wipe all.

        Args:
            server_round: The round.
            alive: Nodes whose vectors are in the sum, rising.
            lost: The others that have dealt, rising.
            once: Notes over which nodes the weights and arrays of the vector were summed.

        Returns:
            In the order of the nodes in both lists together, rising; empty where the node has no good share.

        Raises:
            RequestError: If this is not the next message of the round, or the sum does not hide each node in it.
        """
        at = self._expect(UNMASK, server_round)
        if sorted([*alive, *lost]) != sorted(at.sources) or self._index not in alive:
            raise RequestError("refused: each node of a secure sum has arrived or is lost, and this one has arrived")
        at.check_sum({*alive}, once)
        shares = {
            source: seed if source in alive else secret
            for source, seed, secret in zip(at.sources, at.seed_shares, at.secret_shares, strict=True)
        }
        self._state.clear()
        self._state.update(run=at.run, round=at.round, purpose=at.purpose, stage=DONE)
        return [shares[node] for node in sorted(shares)]

    @property
    def nodes(self) -> int:
        """How many nodes the vectors of the round are made for."""
        return len(self._at.nodes)

    @property
    def factor(self) -> float:
        """By what the node's numbers are multiplied, as all nodes of the round work it out."""
        return self._at.factors[self._at.nodes.index(self._index)]

    @property
    def largest(self) -> int:
        """The largest number of images that a node of the round states."""
        return largest(self._at.stated)

    @property
    def summed(self) -> NDArray[np.bool_]:
        """Of which classes the sum has rows, (C,)."""
        return summed(self._at.stated)

    def _expect(self, stage: str, server_round: int) -> State:
        """Return what the node keeps, if the message is the next one."""
        at = self._at
        if not at.stage:
            raise ForgottenError(
                f"this node has no keys of round {server_round} ({self._purpose}): it has given none, or its process "
                "has ended since, and keys are on no disk"
            )
        if (at.stage, at.round, at.purpose) != (stage, server_round, self._purpose):
            raise RequestError(
                f"refused: a message of secure sums in round {server_round} ({self._purpose}) that follows the stage "
                f"{stage!r}; this node is at {at.stage!r} of round {at.round} ({at.purpose}): each message comes once, "
                "in its order"
            )
        return at


def pair_key(secret: bytes, public: bytes, context: bytes) -> bytes:
    """Return the key of the mask that two nodes share, from one's private and the other's public key.

    Args:
        secret: The private key.
        public: The public key.
        context: The digest of the group, and that of what was sent.
    """
    return crypto.digest("mask", crypto.agreed(secret, public), context)


def digest_of(weights: Mapping[str, NDArray[Any]], *more: str) -> bytes:
    """Return the digest of shared weights as they were sent, by name, and of what else all nodes were sent alike."""
    return crypto.digest(weights_digest(weights), *more)


def weights_digest(weights: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the digest of shared weights as they were sent, by name; empty where there are none."""
    hashed = hashlib.sha256()
    for name, array in weights.items():
        hashed.update(crypto.digest(name, str(array.dtype), str(array.shape)))
        hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hashed.digest() if weights else b""


def digests_of(contributed: Mapping[str, NDArray[Any]]) -> list[bytes]:
    """Return the digest of each array that a node contributes, before any factor of a group; zeros tell nothing."""
    return [weights_digest({name: array}) for name, array in contributed.items() if array.any()]
