"""The protocol of secure sums, played by its pure parts: what is learnt, what is refused, and who is named."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy import stats
from support import ROOT

from fedshift_core.errors import FederationError, FedShiftError, ForgottenError
from fedshift_core.secure import crypto
from fedshift_core.secure.group import ANSWERS, Group, pack_shares, threshold, unpack_shares
from fedshift_core.secure.protocol import Member, digest_of, pair_key
from fedshift_core.secure.recovery import Dealt, Unmasking, empty
from fedshift_core.secure.statement import Statement

SIZE = 40
Vector = Any
STATED = Statement(20, (True,) * 9)


class Play:
    """A round of n nodes, stage by stage.

    Attributes:
        vectors: Before they are masked, by node.
        masked: What the server receives, by node.
    """

    def __init__(self, number: int, fewest: int = 3, size: int = SIZE) -> None:
        self.number, self.fewest, self.size = number, fewest, size
        self.nodes = [3 * i + 1 for i in range(number)]  # indices need not be places
        self.states: dict[int, Any] = {node: {} for node in self.nodes}
        self.masked: dict[int, Vector] = {}
        rng = np.random.default_rng(number)
        self.vectors = {node: rng.integers(0, 1000, size, dtype=np.uint32) for node in self.nodes}

    def member(self, node: int) -> Member:
        return Member(self.states[node], node)

    def set_up(self, silent: Collection[int] = ()) -> None:
        """Play the stages keys and shares; ``silent`` nodes send keys and deal nothing."""
        keys = zip(*(self.member(node).keys("run", 1) for node in self.nodes), strict=True)
        factors = (0.25, *[1.0] * (self.number - 1))
        said = (STATED,) * self.number
        self.group = Group(1, tuple(self.nodes), *map(tuple, keys), said, factors, self.fewest, 2)
        self.dealt = Dealt(self.group)
        for node in self.nodes:
            if node not in silent:
                self.dealt.take(node, *self.member(node).deal(self.group))

    def mask(self, node: int, weights: bytes = b"") -> None:
        self.masked[node] = self.member(node).mask(self.vectors[node].copy(), weights)

    def train(self, lost: Collection[int] = ()) -> None:
        for node in self.dealt.dealers:
            assert self.member(node).receive(1, *self.dealt.for_node(node)) == []
            if node not in lost:
                self.mask(node)

    def unmask(
        self, silent: Collection[int] = (), change: Any = None, weights: bytes = b""
    ) -> tuple[Vector, Unmasking]:
        alive = sorted(self.masked)
        unmasking = Unmasking(self.dealt, alive)
        for node in alive:
            if node not in silent:
                shares = self.member(node).reveal(1, alive, unmasking.lost)
                unmasking.take(node, change(node, shares) if change else shares)
        return unmasking.unmasked(summed(self.masked.values(), self.size), weights), unmasking

    def plain(self) -> Vector:
        return summed((self.vectors[node] for node in self.masked), self.size)


def summed(vectors: Iterable[Vector], size: int) -> Vector:
    return sum(vectors, empty(size))


def trained(number: int, lost: Collection[int] = (), **of: Any) -> Play:
    """Return a round in which all nodes but the lost ones have trained."""
    play = Play(number, **of)
    play.set_up()
    play.train(lost)
    return play


def shares_of(play: Play, nodes: Collection[int], of: int, kind: str) -> list[bytes]:
    """Return the shares of one node that others hold."""
    return [play.states[node][kind][play.states[node]["sources"].index(of)] for node in nodes]


@settings(max_examples=8)
@given(st.data())
def test_the_sum_is_that_of_the_vectors_that_arrived_whoever_is_lost(data: st.DataObject) -> None:
    play = Play(data.draw(st.integers(3, 7)))
    spare = play.number - threshold(play.number, play.fewest)
    lost = data.draw(st.lists(st.sampled_from(play.nodes), unique=True, max_size=spare))
    split = data.draw(st.integers(0, len(lost)))
    play.set_up(silent=lost[:split])
    play.train(lost=lost[split:])
    silent = [] if lost else data.draw(st.lists(st.sampled_from(play.nodes), unique=True, max_size=spare))
    total, unmasking = play.unmask(silent=silent)
    assert not unmasking.wrong
    np.testing.assert_array_equal(total, play.plain())


def test_one_more_lost_than_allowed_and_nothing_is_learnt() -> None:
    play = trained(5)
    with refused(FederationError, "2 nodes", "node 1", "4 are needed"):
        play.unmask(silent=play.nodes[:3])


def test_fewer_shares_than_the_threshold_unmask_no_single_reply() -> None:
    """The server's view with all that t - 1 nodes know leaves uniform noise over the vector of another node.

    By chi-square over bytes of the residues: a reply of which less is known is noise the more.
    """
    play = trained(5, size=1 << 16)
    victim, *others = play.nodes
    colluding = others[: play.group.threshold - 1]
    joined = crypto.joined(shares_of(play, colluding, victim, "seed_shares"))
    assert joined is None or crypto.digest("own", victim, joined) != play.dealt.seeds[victim]
    # With the pairs' masks that colluders know taken off, what is left is still uniform.
    left = play.masked[victim].copy()
    for node in colluding:
        key = pair_key(play.states[node]["mask_secret"], play.group.mask_keys[0], play.group.digest())
        crypto.add_mask(left, key, minus=victim < node)
    left -= play.vectors[victim]
    for part in (left >> 24, left & 0xFF, left >> 16 & 0xFF):
        assert stats.chisquare(np.bincount(part, minlength=256)).pvalue > 1e-6


def test_masks_are_under_all_bits_of_the_key() -> None:
    """Keys whose words cancel give one stream with Flower's generator, and different ones here."""
    masks = [empty(9), empty(9)]
    for mask, key in zip(masks, (b"\x01\x02\x03\x04" * 2 + bytes(24), bytes(32)), strict=True):
        crypto.add_mask(mask, key)
    assert not np.array_equal(*masks)


def test_keys_and_shares_are_those_of_flower() -> None:
    from flwr.common.secure_aggregation.crypto import shamir, symmetric_encryption
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat

    one, two = crypto.new_secret(), crypto.new_secret()
    keys = crypto._private(one), crypto.point(crypto.public_of(two))
    assert symmetric_encryption.generate_shared_key(*keys) == crypto.agreed(two, crypto.public_of(one))
    ours, theirs = crypto.shares_of(one, 3, 5), shamir.create_shares(one, 3, 5)
    assert shamir.combine_shares(ours[1:4]) == crypto.joined(theirs[2:]) == one
    pair = crypto.shares_of(crypto.new_seed(), 3, 5)[0], ours[1]
    assert pack_shares(7, 4, *pair) == share_keys_plaintext_concat(7, 4, *pair)
    assert unpack_shares(pack_shares(7, 4, *pair), 7, 4) == pair


def test_a_node_that_lies_about_a_share_is_named_and_not_used() -> None:
    play = trained(7, lost=[13])

    def lie(node: int, shares: list[bytes]) -> list[bytes]:
        return [shares[0][:-1] + bytes([shares[0][-1] ^ 1]), *shares[1:]] if node == 4 else shares

    total, unmasking = play.unmask(change=lie)
    assert list(unmasking.wrong) == [4] and "node 1" in unmasking.wrong[4]
    np.testing.assert_array_equal(total, play.plain())
    with refused(FederationError, "node 7", "share of node 1"):  # its share of another node
        trained(3).unmask(change=lambda node, shares: [shares[1], *shares[1:]] if node == 7 else shares)


@pytest.mark.parametrize("damage", ["changed", "replayed", "swapped", "short", "committed to another"])
def test_a_share_that_is_not_what_it_should_be_is_recognised_by_who_receives_it(damage: str) -> None:
    old, play = trained(3), Play(3)
    play.set_up()
    first, second, third = play.nodes
    texts, digests, at = play.dealt.texts, play.dealt.digests, (second, first)
    key = crypto.agreed(play.states[second]["cipher_secret"], play.group.cipher_keys[0])
    if damage == "swapped":
        texts[at], texts[third, first] = texts[third, first], texts[at]
    elif damage == "committed to another":
        digests[at] = digests[third, first]
    else:
        short = crypto.encrypted(key, b"too short")
        texts[at] = {"changed": texts[at][:-4] + b"AAA=", "replayed": old.dealt.texts[at], "short": short}[damage]
    for node in play.nodes:
        bad = play.member(node).receive(1, *play.dealt.for_node(node))
        assert bad == ([] if node != first else [second, third] if damage == "swapped" else [second])
        play.mask(node)
    with refused(FederationError, "node 1", f"node {second}"):
        play.unmask()


def test_a_node_reveals_once_and_wipes_its_keys() -> None:
    play = trained(3)
    member = play.member(1)
    member.reveal(1, play.nodes, [])
    assert set(play.states[1]) == {"run", "round", "purpose", "stage"}
    for call in (
        lambda: member.reveal(1, play.nodes, []),
        lambda: member.mask(empty(3)),
        lambda: member.keys("run", 1),
    ):
        with refused(FedShiftError, "once"):
            call()
    assert len(member.keys("run", 2)[0]) == len(member.keys("another", 1)[0]) == crypto.PUBLIC_BYTES


def test_a_round_has_two_sums_in_their_order_with_keys_of_their_own() -> None:
    """The second sum draws all anew: of the first one, keys and shares are gone, and neither comes again."""
    state: dict[str, Any] = {}
    first, second = Member(state, 1), Member(state, 1, ANSWERS)
    drawn = [first.keys("run", 3)]
    with refused(FedShiftError, "once"):
        second.receive(3, [], [], [])
    before = state["mask_secret"]
    drawn.append(second.keys("run", 3))
    assert state["mask_secret"] != before
    for member in (first, second):
        with refused(FedShiftError, "round 3 (answers)"):
            member.keys("run", 3)
    drawn += [first.keys("run", 4), second.keys("run", 4), first.keys("run", 5)]
    assert len({*drawn}) == 5
    group = Group(1, (1, 2), (b"a", b"b"), (b"c", b"d"), (STATED, STATED), (1.0, 1.0), 2, 2)
    assert group.digest() != replace(group, purpose=ANSWERS).digest()


@pytest.mark.parametrize(
    ("alive", "lost", "named"),
    [
        ([1, 4, 7, 10, 13], [4], ""),
        ([4, 7, 10, 13], [1], ""),
        ([1, 4, 7, 10], [], ""),
        ([1, 4, 7, 10], [13, 99], ""),
        ([1, 4, 7], [10, 13], "3, needed: 4"),
    ],
)
def test_no_node_gives_both_shares_of_one_node_or_unmasks_a_sum_of_too_few(alive: Any, lost: Any, named: str) -> None:
    with refused(FedShiftError, named):
        trained(5, fewest=4).member(1).reveal(1, alive, lost)


def test_the_threshold_leaves_a_server_and_a_third_of_the_nodes_too_few_shares() -> None:
    for nodes in range(2, 60):
        for fewest in range(2, nodes + 1):
            t = threshold(nodes, fewest)
            needed = 2 * t - nodes  # nodes that must work with a server that splits the others
            assert fewest <= t <= nodes and needed > nodes / 3 and needed > fewest / 2
    page = (ROOT / "docs" / "deploy" / "secure-sums.md").read_text()
    for nodes in (3, 4, 5, 7, 10, 20):
        t = threshold(nodes, 3)
        assert f"| {nodes} | {t} | {nodes - t} | {2 * t - nodes - 1} |" in page


@pytest.mark.parametrize("number", [4, 9])
def test_a_server_that_tells_nodes_different_things_and_a_third_of_them_get_no_vector(number: int) -> None:
    """The last nodes give the server both shares of the first one; it splits the others."""
    play = trained(number)
    victim, helpers = play.nodes[0], play.nodes[number - number // 3 :]
    honest = play.nodes[: number - len(helpers)]
    half = (len(honest) + 1) // 2  # the first, who knows that it has arrived, is among them
    seeds = [play.member(node).reveal(1, play.nodes, [])[0] for node in honest[:half]]
    secrets = [play.member(node).reveal(1, play.nodes[1:], [victim])[0] for node in honest[half:]]
    seed = crypto.joined(shares_of(play, helpers, victim, "seed_shares") + seeds)
    secret = crypto.joined(shares_of(play, helpers, victim, "secret_shares") + secrets)
    has_seed = seed is not None and crypto.digest("own", victim, seed) == play.dealt.seeds[victim]
    has_secret = secret is not None and crypto.is_pair(secret, play.group.mask_keys[0])
    assert not (has_seed and has_secret)


@pytest.mark.parametrize("secrets", [1, 4], ids=["no private key", "no one secret"])
def test_a_node_that_deals_shares_of_no_private_key_is_named(secrets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(4)
    play.set_up(silent=[10])
    dealt = crypto.shares_of

    def shares(secret: bytes, t: int, n: int) -> list[bytes]:
        several = [dealt(bytes([k]) * len(secret), t, n) for k in range(secrets)]
        return [several[i % secrets][i] for i in range(n)]

    with monkeypatch.context() as patched:
        patched.setattr(crypto, "shares_of", shares)
        play.dealt.take(10, *play.member(10).deal(play.group))
    play.train(lost=[10])
    with refused(FederationError, "node 10"):
        play.unmask()


def test_nodes_that_are_told_or_sent_different_things_give_noise() -> None:
    """By what vectors are multiplied, the shared weights, and how vectors are made: else masks do not cancel."""
    weights = {"w": np.ones((2, 3), np.float32), "n": np.array(7)}
    same = digest_of(weights, "[7]")
    assert same == digest_of({**weights, "w": np.asfortranarray(weights["w"])}, "[7]")
    others = [same, digest_of(weights | {"w": weights["w"] * 1.5}, "[7]"), digest_of(weights, "[1]", "[7]")]
    assert len({*others}) == 3
    for sent, fewest in [(digest, 3) for digest in others] + [(same, 2)]:
        play = Play(3)
        play.set_up()
        play.states[1]["group"] = replace(play.group, fewest=fewest).digest()
        for node in play.nodes:
            play.member(node).receive(1, *play.dealt.for_node(node))
            play.mask(node, sent if node == 1 else same)
        right = np.array_equal(play.unmask(weights=same)[0], play.plain())
        assert right is (sent == same and fewest == 3)


def test_a_group_that_would_not_hide_a_node_is_refused() -> None:
    play = Play(4)
    play.set_up()
    for changes, *named in (
        ({"factors": (1.0, 1.0, 1e-3, 1e-3), "least": 3.0}, "4 nodes", "2.004", "3 are needed"),
        ({"fewest": 5}, "4, needed: 5"),
        ({"factors": (1.0, 1.0, 0.0, 1.0)}, "above 0"),
        *(
            ({name: value}, "each once")
            for name, value in (
                ("nodes", (1, 4, 4, 10)),
                ("nodes", (4, 1, 7, 10)),
                ("mask_keys", play.group.cipher_keys),
                ("factors", (1.0,)),
                ("statements", (STATED,)),
                ("publics", (b"a",)),
            )
        ),
    ):
        with refused(FedShiftError, *named):
            replace(play.group, **changes).check()
    fresh = Play(4)
    fresh.member(1).keys("run", 1)
    with refused(FedShiftError, "keys"):
        fresh.member(1).deal(play.group)


def test_messages_out_of_order_are_refused() -> None:
    play = Play(3)
    for call in (lambda m: m.receive(1, [], [], []), lambda m: m.reveal(1, [], [])):
        with refused(ForgottenError):
            call(play.member(1))
    play.set_up()
    assert [play.member(node).factor for node in play.nodes] == [0.25, 1.0, 1.0]
    with refused(FedShiftError, "once"):
        play.member(1).deal(play.group)
    sources, texts, digests = play.dealt.for_node(1)
    wrong = [(1, other, texts, digests) for other in (sources[:1], [1, 4], [7, 4])]
    wrong += [(2, sources, texts, digests), (1, sources, texts, digests[:3])]
    for given_ in (*wrong, (1, sources[:1], texts[:1], digests[:2])):
        with refused(FedShiftError):
            play.member(1).receive(*given_)


def test_what_is_no_key_is_refused() -> None:
    with refused(FedShiftError, "point"):
        crypto.agreed(crypto.new_secret(), b"\x02" + b"x" * 48)
    with refused(FedShiftError, "private key"):
        crypto.public_of(bytes(48))
    assert not crypto.is_public(b"\x02" + b"x" * 48)
