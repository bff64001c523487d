"""Nodes of a secure sum as the server tells all of them alike, how many must stay, and commitments to shares."""

import struct
from dataclasses import dataclass

from fedshift_core.errors import RequestError
from fedshift_core.secure import crypto
from fedshift_core.secure.statement import Statement, check_effective

#: What is summed: what local training left; answers of features about the averaged weights. In their order in a round.
TRAINING, ANSWERS = "training", "answers"
PURPOSES = (TRAINING, ANSWERS)


def threshold(nodes: int, fewest: int) -> int:
    """Return t: how many of the nodes of a round must give their shares.

    More than two thirds, which is Bonawitz et al.'s bound for an active server, and ``fewest`` at least. Such a server
    learns no node's own vector unless 2 t - n nodes work with it: more than a third of them, and more than half of
    ``fewest``.
    """
    return max(fewest, 2 * nodes // 3 + 1)


#: What one node gives another, before it is encrypted, as Flower writes it: from whom, for whom, the length of the
#: first share, and both shares: of the seed, of the private key.
_LENGTHS = crypto.SHARE_BYTES[crypto.SEED_BYTES], crypto.SHARE_BYTES[crypto.SECRET_BYTES]
_PAIR = struct.Struct(f"<QQI{_LENGTHS[0]}s{_LENGTHS[1]}s")


def pack_shares(dealer: int, holder: int, seed: bytes, secret: bytes) -> bytes:
    """Return the shares of a seed and of a private key for another node, as they are encrypted."""
    return _PAIR.pack(dealer, holder, len(seed), seed, secret)


def unpack_shares(text: bytes | None, dealer: int, holder: int) -> tuple[bytes, bytes]:
    """Return the shares that one node gave another, seed and private key; both empty where it gave something else."""
    if text is None or len(text) != _PAIR.size:
        return b"", b""
    *head, seed, secret = _PAIR.unpack(text)
    return (seed, secret) if head == [dealer, holder, _LENGTHS[0]] else (b"", b"")


SEED, SECRET = "seed", "secret"  # of what a share is: of a seed, of a private key


def share_digest(kind: str, dealer: int, holder: int, share: bytes) -> bytes:
    """Return a node's commitment to the share of its seed, or of its private key, that another node holds."""
    return crypto.digest(kind, dealer, holder, share)


@dataclass(frozen=True)
class Group:
    """What the server tells all nodes of a round alike.

    Attributes:
        server_round: The round.
        nodes: Indices of the nodes, rising.
        cipher_keys: Public keys for encryption, in the order of the nodes.
        mask_keys: Public keys for masks, likewise.
        statements: What each states of its images.
        factors: By what each node's weights are multiplied, above 0 and at most 1, which follows from the statements.
        fewest: k, the least number of nodes in a sum.
        least: The least effective number of them.
        purpose: What is summed, of ``PURPOSES``.
        publics: Long-term public keys, empty of nodes without; none where no node has one.
    """

    server_round: int
    nodes: tuple[int, ...]
    cipher_keys: tuple[bytes, ...]
    mask_keys: tuple[bytes, ...]
    statements: tuple[Statement, ...]
    factors: tuple[float, ...]
    fewest: int
    least: float
    purpose: str = TRAINING
    publics: tuple[bytes, ...] = ()

    @property
    def threshold(self) -> int:
        """T of this group."""
        return threshold(len(self.nodes), self.fewest)

    def digest(self) -> bytes:
        """Return what tells this group from any other one."""
        return crypto.digest(
            self.purpose,
            self.server_round,
            self.fewest,
            float(self.least).hex(),
            *self.members(),
            *self.cipher_keys,
            *self.mask_keys,
        )

    def members(self) -> list[bytes]:
        """Return what tells each node, as part of a sum, from any other one; keys of sums are new each time."""
        publics = self.publics or (b"",) * len(self.nodes)
        return [
            crypto.digest("member", node, statement.written(), factor.hex(), public)
            for node, statement, factor, public in zip(self.nodes, self.statements, self.factors, publics, strict=True)
        ]

    def check(self) -> None:
        """Refuse a group in which too few nodes would hide each other.

        Raises:
            RequestError: With what is wrong.
        """
        parts = self.nodes, self.cipher_keys, self.mask_keys, self.statements, self.factors
        sizes = {len(part) for part in (*parts, self.publics or self.nodes)}
        keys = {*self.cipher_keys, *self.mask_keys}
        if len(sizes) > 1 or list(self.nodes) != sorted({*self.nodes}) or len(keys) != 2 * len(self.nodes):
            raise RequestError("refused: secure sums need nodes in their order, each once, with keys of its own")
        if not all(0 < factor <= 1 for factor in self.factors):
            raise RequestError("refused: weights of nodes in a secure sum are above 0 and at most 1")
        if len(self.nodes) < self.fewest:
            raise RequestError(
                f"refused: nodes in the sum: {len(self.nodes)}, needed: {self.fewest} (federation.secure_sums_nodes)"
            )
        check_effective(self.factors, self.least)
