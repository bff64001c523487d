"""The protocol of secure sums, played by its pure parts: what is learnt, what is refused, and who is named."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support import ROOT, refusal_of

from fedshift_core.errors import FederationError, FedShiftError, ForgottenError
from fedshift_core.secure import crypto
from fedshift_core.secure.group import ANSWERS, Group, pack_shares, threshold, unpack_shares
from fedshift_core.secure.protocol import Member, digest_of, pair_key
from fedshift_core.secure.recovery import Dealt, Unmasking, empty, traffic
from fedshift_core.secure.statement import Statement

SIZE = 40
Vector = Any
STATED = Statement(20, (True,) * 9)


@dataclass
class Play:
    """A round of n nodes, stage by stage.

    Attributes:
        vectors: Before they are masked, by node.
        masked: What the server receives, by node.
    """

    number: int
    fewest: int = 3
    size: int = SIZE
    factors: tuple[float, ...] = ()
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    masked: dict[int, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = [3 * i + 1 for i in range(self.number)]  # indices need not be places
        self.states = {node: {} for node in self.nodes}
        rng = np.random.default_rng(self.number)
        self.vectors = {node: rng.integers(0, 1000, self.size, dtype=np.uint32) for node in self.nodes}

    def member(self, node: int) -> Member:
        return Member(self.states[node], node)

    def set_up(self, silent: Collection[int] = (), server_round: int = 1) -> None:
        """Play the stages keys and shares; ``silent`` nodes send keys and deal nothing."""
        keys = {node: self.member(node).keys("run", server_round) for node in self.nodes}
        self.group = Group(
            server_round, tuple(self.nodes), tuple(keys[n][0] for n in self.nodes),
            tuple(keys[n][1] for n in self.nodes), (STATED,) * self.number,
            self.factors or (1.0,) * self.number, self.fewest, 2,
        )  # fmt: skip
        self.dealt = Dealt(self.group)
        for node in self.nodes:
            if node not in silent:
                self.dealt.take(node, *self.member(node).deal(self.group))

    def train(self, lost: Collection[int] = ()) -> None:
        for node in self.dealt.dealers:
            assert self.member(node).receive(self.group.server_round, *self.dealt.for_node(node)) == []
            if node not in lost:
                self.masked[node] = self.member(node).mask(self.vectors[node].copy())

    def unmask(self, silent: Collection[int] = (), change: Callable[[int, list[bytes]], list[bytes]] | None = None,
               ) -> tuple[Vector, Unmasking]:  # fmt: skip
        alive = sorted(self.masked)
        unmasking = Unmasking(self.dealt, alive)
        for node in alive:
            if node not in silent:
                shares = self.member(node).reveal(self.group.server_round, alive, unmasking.lost)
                unmasking.take(node, change(node, shares) if change else shares)
        total = empty(self.size)
        for vector in self.masked.values():
            total += vector
        return unmasking.unmasked(total), unmasking

    def plain(self) -> Vector:
        total = empty(self.size)
        for node in self.masked:
            total += self.vectors[node]
        return total


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
    play = Play(5)
    play.set_up()
    play.train()
    text = refusal_of(FederationError, play.unmask, silent=play.nodes[:3])
    assert "2 nodes gave a right share of node 1, 4 are needed" in text


def test_what_the_server_receives_of_one_node_is_noise() -> None:
    """Chi-square over the residues of one reply, of which the vector itself is the same number throughout."""
    play = Play(3, size=1 << 18)
    play.vectors = {node: np.full(play.size, 7, np.uint32) for node in play.nodes}
    play.set_up()
    play.train()
    for masked in play.masked.values():
        for part in (masked >> 24, masked & 0xFF, masked >> 16 & 0xFF):
            assert stats.chisquare(np.bincount(part, minlength=256)).pvalue > 1e-6
        lag = np.corrcoef(masked[:-1].astype(float), masked[1:].astype(float))[0, 1]
        assert abs(lag) < 0.02
    two = play.masked[1].astype(np.int64) - play.masked[4].astype(np.int64)
    assert stats.chisquare(np.bincount(np.mod(two, 2**32) >> 24, minlength=256)).pvalue > 1e-6
    np.testing.assert_array_equal(play.unmask()[0], play.plain())


def test_fewer_shares_than_the_threshold_unmask_no_single_reply() -> None:
    """The server's view with all that t - 1 nodes know leaves uniform noise over the vector of another node."""
    guesses = []
    for _ in range(5):
        play = Play(5, size=3000)
        play.set_up()
        play.train()
        victim, *others = play.nodes
        colluding = others[: play.group.threshold - 1]
        shares = [play.states[node]["seed_shares"][play.states[node]["sources"].index(victim)] for node in colluding]
        joined = crypto.joined(shares)
        assert joined is None or crypto.digest("own", victim, joined) != play.dealt.seeds[victim]
        # With the pairs' masks that colluders know taken off, what is left is still uniform.
        left = play.masked[victim].copy()
        keys = dict(zip(play.group.nodes, play.group.mask_keys, strict=True))
        for node in colluding:
            key = pair_key(play.states[node]["mask_secret"], keys[victim], play.group.digest())
            crypto.add_mask(left, key, minus=victim < node)
        guesses.append(left - play.vectors[victim])
    residues = np.concatenate(guesses)
    assert stats.chisquare(np.bincount(residues >> 28, minlength=16)).pvalue > 1e-6


def test_masks_are_under_all_bits_of_the_key() -> None:
    """Keys whose words cancel give one stream with Flower's generator, and different ones here."""
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    word = b"\x01\x02\x03\x04"
    first, second = word * 2 + bytes(24), bytes(32)
    assert np.array_equal(pseudo_rand_gen(first, 2**32, [(9,)])[0], pseudo_rand_gen(second, 2**32, [(9,)])[0])
    masks = []
    for key in (first, second):
        masks.append(empty(9))
        crypto.add_mask(masks[-1], key)
    assert not np.array_equal(*masks)


def test_keys_and_shares_are_those_of_flower() -> None:
    from flwr.common.secure_aggregation.crypto import shamir, symmetric_encryption
    from flwr.common.secure_aggregation.secaggplus_utils import share_keys_plaintext_concat

    one, two, seed = crypto.new_secret(), crypto.new_secret(), crypto.new_seed()
    keys = crypto._private(one), crypto.point(crypto.public_of(two))
    assert symmetric_encryption.generate_shared_key(*keys) == crypto.agreed(two, crypto.public_of(one))
    for secret in (one, seed):
        ours, theirs = crypto.shares_of(secret, 3, 5), shamir.create_shares(secret, 3, 5)
        assert shamir.combine_shares(ours[1:4]) == crypto.joined(theirs[2:]) == secret
        assert {len(share) for share in (*ours, *theirs)} == {crypto.SHARE_BYTES[len(secret)]}
    first, second = crypto.shares_of(seed, 3, 5)[0], crypto.shares_of(one, 3, 5)[1]
    assert pack_shares(7, 4, first, second) == share_keys_plaintext_concat(7, 4, first, second)
    assert unpack_shares(pack_shares(7, 4, first, second), 7, 4) == (first, second)


def test_masks_longer_than_a_block_are_taken_off_again() -> None:
    vector = np.arange(300_000, dtype=np.uint32)
    crypto.add_mask(vector, bytes(32))
    crypto.add_mask(vector, bytes(32), minus=True)
    assert vector.tolist()[:3] == [0, 1, 2] and int(vector[-1]) == 299_999


def test_a_node_that_lies_about_a_share_is_named_and_not_used() -> None:
    play = Play(7)
    play.set_up()
    play.train(lost=[13])

    def lie(node: int, shares: list[bytes]) -> list[bytes]:
        return [shares[0][:-1] + bytes([shares[0][-1] ^ 1]), *shares[1:]] if node == 4 else shares

    total, unmasking = play.unmask(change=lie)
    assert list(unmasking.wrong) == [4]
    assert "its share of node 1 is not the one that node 1 committed to" in unmasking.wrong[4]
    np.testing.assert_array_equal(total, play.plain())


def test_a_share_of_another_node_or_round_is_no_right_one() -> None:
    play = Play(3)
    play.set_up()
    play.train()

    def replay(node: int, shares: list[bytes]) -> list[bytes]:
        return [shares[1], *shares[1:]] if node == 7 else shares

    text = refusal_of(FederationError, play.unmask, change=replay)
    assert "node 7: its share of node 1 is not the one that node 1 committed to" in text


@pytest.mark.parametrize("damage", ["changed", "replayed", "swapped", "short", "committed to another"])
def test_a_share_that_is_not_what_it_should_be_is_recognised_by_who_receives_it(damage: str) -> None:
    old = Play(3)
    old.set_up()
    play = Play(3)
    play.set_up()
    first, second, third = play.nodes
    texts, digests = play.dealt.texts, play.dealt.digests
    if damage == "changed":
        texts[second, first] = texts[second, first][:-4] + b"AAA="
    elif damage == "replayed":
        texts[second, first] = old.dealt.texts[second, first]
    elif damage == "swapped":
        texts[second, first], texts[third, first] = texts[third, first], texts[second, first]
    elif damage == "short":
        key = crypto.agreed(play.states[second]["cipher_secret"], play.group.cipher_keys[0])
        texts[second, first] = crypto.encrypted(key, b"too short")
    else:
        digests[second, first] = digests[third, first]
    bad = play.member(first).receive(1, *play.dealt.for_node(first))
    assert bad == ([second, third] if damage == "swapped" else [second])
    for node in (second, third):
        play.member(node).receive(1, *play.dealt.for_node(node))
    play.masked = {node: play.member(node).mask(play.vectors[node].copy()) for node in play.nodes}
    text = refusal_of(FederationError, play.unmask)
    assert f"node 1: it says that what node {second} dealt to it is no share" in text


def test_a_node_reveals_once_and_wipes_its_keys() -> None:
    play = Play(3)
    play.set_up()
    play.train()
    member = play.member(1)
    member.reveal(1, play.nodes, [])
    assert set(play.states[1]) == {"run", "round", "purpose", "stage"}
    assert "each message comes once" in refusal_of(FedShiftError, member.reveal, 1, play.nodes, [])
    assert "masked once" in refusal_of(FedShiftError, member.mask, empty(3))
    assert "leaves a node once" in refusal_of(FedShiftError, member.keys, "run", 1)
    assert len(member.keys("run", 2)[0]) == len(member.keys("another", 1)[0]) == crypto.PUBLIC_BYTES


def test_a_round_has_two_sums_in_their_order_with_keys_of_their_own() -> None:
    """The second sum draws all anew: of the first one, keys and shares are gone, and neither comes again."""
    state: dict[str, Any] = {}
    first, second = Member(state, 1), Member(state, 1, ANSWERS)
    drawn = {first.keys("run", 3)}
    assert "comes once" in refusal_of(FedShiftError, second.receive, 3, [], [], [])
    before = state["mask_secret"]
    drawn.add(second.keys("run", 3))
    assert len(drawn) == 2 and state["mask_secret"] != before
    for member in (first, second):
        text = refusal_of(FedShiftError, member.keys, "run", 3)
        assert "given keys of round 3 (answers): what is in a sum leaves a node once" in text
    assert "comes once" in refusal_of(FedShiftError, first.receive, 3, [], [], [])
    assert len({*first.keys("run", 4), *second.keys("run", 4), *first.keys("run", 5)}) == 6
    group = Group(1, (1, 2), (b"a", b"b"), (b"c", b"d"), (STATED, STATED), (1.0, 1.0), 2, 2)
    assert group.digest() != replace(group, purpose=ANSWERS).digest()


def test_a_node_goes_by_the_weight_that_all_nodes_were_told() -> None:
    play = Play(3)
    play.factors = (1.0, 0.25, 1.0)
    play.set_up()
    assert [play.member(node).factor for node in play.nodes] == [1.0, 0.25, 1.0]


def test_no_node_gives_both_shares_of_one_node() -> None:
    play = Play(5)
    play.set_up()
    play.train()
    for alive, lost in ((play.nodes, [4]), (play.nodes[1:], [1]), (play.nodes[:4], []), (play.nodes[:4], [13, 99])):
        text = refusal_of(FedShiftError, play.member(1).reveal, 1, alive, lost)
        assert "has arrived or is lost" in text


def test_a_node_refuses_to_unmask_a_sum_of_too_few() -> None:
    play = Play(5, fewest=4)
    play.set_up()
    play.train()
    text = refusal_of(FedShiftError, play.member(1).reveal, 1, play.nodes[:3], play.nodes[3:])
    assert "nodes in the sum: 3, needed: 4 (more than two thirds of the round's 5, federation.secure_sums_nodes" in text


def test_the_threshold_leaves_a_server_and_a_third_of_the_nodes_too_few_shares() -> None:
    for nodes in range(2, 60):
        for fewest in range(2, nodes + 1):
            t = threshold(nodes, fewest)
            needed = 2 * t - nodes  # nodes that must work with a server that splits the others
            assert fewest <= t <= nodes and needed > nodes / 3 and needed > fewest / 2


def test_the_page_has_the_thresholds_by_number_of_nodes() -> None:
    text = (ROOT / "docs" / "deploy" / "secure-sums.md").read_text()
    for nodes in (3, 4, 5, 7, 10, 20):
        t = threshold(nodes, 3)
        assert f"| {nodes} | {t} | {nodes - t} | {2 * t - nodes - 1} |" in text


@pytest.mark.parametrize("number", [4, 5, 7, 9])
def test_a_server_that_tells_nodes_different_things_and_a_third_of_them_get_no_vector(number: int) -> None:
    """The last nodes give the server both shares of the first one; it splits the others."""
    play = Play(number)
    play.set_up()
    play.train()
    victim, helpers = play.nodes[0], play.nodes[number - number // 3 :]
    seeds, secrets = [], []
    for node in helpers:
        place = play.states[node]["sources"].index(victim)
        seeds.append(play.states[node]["seed_shares"][place])
        secrets.append(play.states[node]["secret_shares"][place])
    honest = play.nodes[: number - len(helpers)]
    half = (len(honest) + 1) // 2  # the first, who knows that it has arrived, is among them
    seeds += [play.member(node).reveal(1, play.nodes, [])[0] for node in honest[:half]]
    secrets += [play.member(node).reveal(1, play.nodes[1:], [victim])[0] for node in honest[half:]]
    seed, secret = crypto.joined(seeds), crypto.joined(secrets)
    has_seed = seed is not None and crypto.digest("own", victim, seed) == play.dealt.seeds[victim]
    has_secret = secret is not None and crypto.is_pair(secret, play.group.mask_keys[0])
    assert not (has_seed and has_secret)


def test_nodes_that_share_by_a_larger_threshold_than_the_servers_make_no_wrong_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As nodes of another version of FedShift would: too few shares give another secret, which is noticed."""
    for lost in ([], [7]):
        play = Play(5)
        play.set_up()
        play.train(lost)
        with monkeypatch.context() as patched:
            patched.setattr("fedshift_core.secure.group.threshold", lambda nodes, fewest: fewest)
            assert play.group.threshold == 3
            text = refusal_of(FederationError, play.unmask)
        assert "secure sums: the shares of node " in text


def test_a_node_that_deals_shares_of_no_private_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(4)
    play.set_up(silent=[10])
    shares_of = crypto.shares_of
    with monkeypatch.context() as patched:
        patched.setattr(crypto, "shares_of", lambda secret, t, n: shares_of(bytes(len(secret)), t, n))
        play.dealt.take(10, *play.member(10).deal(play.group))
    play.train(lost=[10])
    assert "the shares of node 10 do not give its private key" in refusal_of(FederationError, play.unmask)


def test_nodes_that_are_told_different_things_give_noise() -> None:
    """The server tells one node other weights than the others: its masks do not cancel."""
    play = Play(3)
    play.set_up()
    play.states[1]["group"] = replace(play.group, factors=(1.0, 1.0, 0.5)).digest()
    play.train()
    total, _ = play.unmask()
    assert not np.array_equal(total, play.plain())


def test_nodes_that_are_sent_different_weights_give_noise() -> None:
    weights = {"w": np.ones((2, 3), np.float32), "n": np.array(7)}
    other = weights | {"w": np.full((2, 3), 1.5, np.float32)}
    same, changed, otherwise = digest_of(weights, "[7]"), digest_of(other, "[7]"), digest_of(weights, "[1]", "[7]")
    assert same == digest_of({**weights, "w": np.asfortranarray(weights["w"])}, "[7]")
    assert len({same, changed, otherwise}) == 3
    for told, equal in ((same, True), (changed, False), (otherwise, False)):
        play = Play(3)
        play.set_up()
        for node in play.nodes:
            play.member(node).receive(1, *play.dealt.for_node(node))
            mine = told if node == 1 else same
            play.masked[node] = play.member(node).mask(play.vectors[node].copy(), mine)
        unmasking = Unmasking(play.dealt, play.nodes)
        for node in play.nodes:
            unmasking.take(node, play.member(node).reveal(1, play.nodes, []))
        total = empty(play.size)
        for vector in play.masked.values():
            total += vector
        assert np.array_equal(unmasking.unmasked(total, same), play.plain()) is equal


def test_a_group_that_would_not_hide_a_node_is_refused() -> None:
    play = Play(4)
    play.set_up()
    group = play.group

    def other(**changes: Any) -> Group:
        return Group(**{**vars(group), **changes})

    text = refusal_of(FedShiftError, other(factors=(1.0, 1.0, 1e-3, 1e-3), least=3.0).check)
    assert "the 4 nodes of a sum hide each other as 2.004" in text and "3 are needed" in text
    assert "nodes in the sum: 4, needed: 5" in refusal_of(FedShiftError, other(fewest=5).check)
    assert "above 0 and at most 1" in refusal_of(FedShiftError, other(factors=(1.0, 1.0, 0.0, 1.0)).check)
    for changes in ({"nodes": (1, 4, 4, 10)}, {"nodes": (4, 1, 7, 10)}, {"mask_keys": group.cipher_keys},
                    {"factors": (1.0,)}, {"statements": (STATED,)}, {"publics": (b"a",)}):  # fmt: skip
        assert "each once, with keys of its own" in refusal_of(FedShiftError, other(**changes).check)
    fresh = Play(4)
    fresh.member(1).keys("run", 1)
    assert "keys are not among those" in refusal_of(FedShiftError, fresh.member(1).deal, group)


def test_messages_out_of_order_are_refused() -> None:
    play = Play(3)
    for call in (lambda m: m.receive(1, [], [], []), lambda m: m.reveal(1, [], [])):
        assert "it has given none, or its process has ended" in refusal_of(ForgottenError, call, play.member(1))
    play.set_up()
    assert "comes once" in refusal_of(FedShiftError, play.member(1).deal, play.group)
    assert "comes once" in refusal_of(FedShiftError, play.member(1).receive, 2, *play.dealt.for_node(1))
    sources, texts, digests = play.dealt.for_node(1)
    for given_ in ((sources[:1], texts, digests), ([1, 4], texts, digests), ([7, 4], texts, digests),
                   (sources, texts, digests[:3])):  # fmt: skip
        assert "each once" in refusal_of(FedShiftError, play.member(1).receive, 1, *given_)
    few = (sources[:1], texts[:1], digests[:2])
    assert "nodes that have dealt shares: 2, needed: 3" in refusal_of(FedShiftError, play.member(1).receive, 1, *few)


def test_the_bytes_of_a_round_are_those_that_are_calculated() -> None:
    play = Play(4)
    play.set_up()
    dealt = play.dealt
    sent = sum(map(len, dealt.texts.values())) + 32 * (2 * len(dealt.digests) + len(dealt.seeds))
    received = sum(len(part) for node in play.nodes for parts in dealt.for_node(node)[1:] for part in parts)
    play.train()
    revealed = sum(len(share) for node in play.nodes for share in play.member(node).reveal(1, play.nodes, []))
    keys = 2 * crypto.PUBLIC_BYTES + len(STATED.written())
    assert traffic(4, 9) == (4 * keys + sent + revealed, 16 * keys + received)


def test_what_is_no_key_is_refused() -> None:
    assert "no point of the curve" in refusal_of(FedShiftError, crypto.agreed, crypto.new_secret(), b"\x02" + b"x" * 48)
    assert "private key" in refusal_of(FedShiftError, crypto.public_of, bytes(48))
