"""The server's part of a secure sum: what nodes committed to, which shares are right, and the sum without masks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedshift_core.errors import FederationError
from fedshift_core.limits import Refused
from fedshift_core.plural import plural
from fedshift_core.secure import crypto
from fedshift_core.secure.crypto import Residues
from fedshift_core.secure.group import SECRET, SEED, Group, share_digest
from fedshift_core.secure.protocol import pair_key
from fedshift_core.secure.statement import num_bytes

TEXT_BYTES = 268  # of a pair of shares, encrypted by Fernet


def traffic(nodes: int, classes: int) -> tuple[int, int]:
    """Return the bytes that a round adds for so many nodes and classes: all that they send, all that they are sent.

    Vectors are not counted: with four bytes a number they are as large as float32 weights.
    """
    pairs, both = nodes * (nodes - 1), 2 * crypto.DIGEST_BYTES
    keys = 2 * crypto.PUBLIC_BYTES + num_bytes(classes)
    dealt = pairs * TEXT_BYTES + nodes**2 * both + nodes * crypto.DIGEST_BYTES
    revealed = nodes**2 * crypto.SHARE_BYTES[crypto.SEED_BYTES]
    return nodes * keys + dealt + revealed, nodes**2 * keys + pairs * (TEXT_BYTES + both)


@dataclass
class Dealt:
    """What the nodes of a round have dealt, as the server sees it.

    Attributes:
        group: The nodes and their keys.
        texts: Encrypted shares by dealer and holder.
        digests: Commitments by dealer and holder: to the share of the seed, to that of the private key.
        seeds: Commitments to whole seeds by dealer.
    """

    group: Group
    texts: dict[tuple[int, int], bytes] = field(default_factory=dict)
    digests: dict[tuple[int, int], tuple[bytes, bytes]] = field(default_factory=dict)
    seeds: dict[int, bytes] = field(default_factory=dict)

    @property
    def dealers(self) -> list[int]:
        """The nodes that have dealt, rising."""
        return sorted(self.seeds)

    def take(self, dealer: int, texts: Sequence[bytes], digests: Sequence[bytes], seed: bytes) -> None:
        """Take in what a node has dealt.

        Raises:
            Refused: If it is not as many as there are nodes, or not as long.
        """
        nodes = self.group.nodes
        others = [node for node in nodes if node != dealer]
        sizes = [TEXT_BYTES] * len(others) + [crypto.DIGEST_BYTES] * (2 * len(nodes) + 1)
        if list(map(len, (*texts, *digests, seed))) != sizes:
            raise Refused("shares or commitments of another number or length than they have")
        self.texts |= {(dealer, other): text for other, text in zip(others, texts, strict=True)}
        pairs = zip(digests[::2], digests[1::2], strict=True)
        self.digests |= {(dealer, node): pair for node, pair in zip(nodes, pairs, strict=True)}
        self.seeds[dealer] = seed

    def for_node(self, holder: int) -> tuple[list[int], list[bytes], list[bytes]]:
        """Return what a node is sent: the others that have dealt, their texts for it, and both commitments of each."""
        others = [dealer for dealer in self.dealers if dealer != holder]
        digests = [digest for dealer in others for digest in self.digests[dealer, holder]]
        return others, [self.texts[dealer, holder] for dealer in others], digests


@dataclass
class Unmasking:
    """Takes the masks off the sum of the vectors that arrived.

    Attributes:
        dealt: What was dealt before.
        alive: Nodes whose vectors are in the sum, rising.
        wrong: Why shares are not used: who gave them, or who dealt them, and what is wrong.
    """

    dealt: Dealt
    alive: list[int]
    wrong: dict[int, str] = field(default_factory=dict)
    _shares: dict[int, list[bytes]] = field(default_factory=dict)

    @property
    def lost(self) -> list[int]:
        """Nodes that have dealt and whose vectors did not arrive, rising."""
        return [node for node in self.dealt.dealers if node not in self.alive]

    def take(self, holder: int, shares: Sequence[bytes]) -> None:
        """Take in the shares that a node reveals, one of each node that has dealt; wrong ones are not used.

        Raises:
            Refused: If there are more or fewer.
        """
        dealers = self.dealt.dealers
        if len(shares) != len(dealers):
            raise Refused(f"{plural(len(shares), 'share')} of {plural(len(dealers), 'node')}")
        for dealer, share in zip(dealers, shares, strict=True):
            place = int(dealer not in self.alive)
            digest = share_digest((SEED, SECRET)[place], dealer, holder, share)
            if not share:
                self.wrong.setdefault(holder, f"it says that what node {dealer} dealt to it is no share")
            elif digest != self.dealt.digests[dealer, holder][place]:
                self.wrong[holder] = f"its share of node {dealer} is not the one that node {dealer} committed to"
            else:
                self._shares.setdefault(dealer, []).append(share)

    def unmasked(self, total: Residues, sent: bytes = b"") -> Residues:
        """Take all masks off the sum, in place, and return it.

        Args:
            total: The sum of the vectors that arrived.
            sent: The digest of the shared weights and of what else all nodes were sent.

        Raises:
            FederationError: If there are too few shares of a node, or they do not give what it committed to.
        """
        group = self.dealt.group
        keys = dict(zip(group.nodes, group.mask_keys, strict=True))
        secrets = {node: self._secret(node) for node in self.dealt.dealers}  # all, before anything is changed
        for node, secret in secrets.items():
            if node in self.alive and crypto.digest("own", node, secret) != self.dealt.seeds[node]:
                raise FederationError(f"secure sums: the shares of node {node} do not give the seed it committed to")
            if node not in self.alive and not crypto.is_pair(secret, keys[node]):
                raise FederationError(f"secure sums: the shares of node {node} do not give its private key")
        context = group.digest() + sent
        for node, secret in secrets.items():
            if node in self.alive:
                crypto.add_mask(total, secret, minus=True)
                continue
            for other in self.alive:
                crypto.add_mask(total, pair_key(secret, keys[other], context), minus=node > other)
        return total

    def _secret(self, node: int) -> bytes:
        needed, shares = self.dealt.group.threshold, self._shares.get(node, [])
        if len(shares) < needed:
            whose = "; ".join(f"node {holder}: {why}" for holder, why in sorted(self.wrong.items()))
            raise FederationError(
                f"secure sums: {plural(len(shares), 'node')} gave a right share of node {node}, {needed} are needed"
                f"{f' ({whose})' if whose else ''}"
            )
        secret = crypto.joined(shares[:needed])
        if secret is None:
            raise FederationError(f"secure sums: the shares of node {node} are not of one secret")
        return secret


def empty(size: int) -> Residues:
    """Return a sum of nothing."""
    return np.zeros(size, np.uint32)
