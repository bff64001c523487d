"""Which node holds what: shares are disjoint, of the promised size and repeatable; what cannot be dealt is an error."""

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from support import refusal_of

from fedshift_core.errors import ConfigError, DataError
from fedshift_datasets.partition.allocation import Allocation
from fedshift_datasets.partition.splits import MOST_KEPT, DomainParts, domain_parts, node_parts

DOMAINS = ("a", "b", "c")

counts_of_domains = st.dictionaries(st.sampled_from(DOMAINS), st.integers(0, 5), min_size=1).filter(
    lambda counts: sum(counts.values()) > 0
)


def node_share(
    allocation: Allocation, dealt: tuple[str, ...], index: int, num_examples: int, seed: int
) -> NDArray[np.int64]:
    """Return what a node trains on where labels do not matter."""
    return node_parts(allocation, dealt, index, np.zeros(num_examples, np.int64), 1, seed).train


def shares_by_domain(
    allocation: Allocation, dealt: tuple[str, ...], num_examples: int, seed: int
) -> dict[str, list[NDArray[np.int64]]]:
    """Return the indices of every node, by domain, in the order of the nodes."""
    held: dict[str, list[NDArray[np.int64]]] = {}
    for index, domain in enumerate(dealt):
        held.setdefault(domain, []).append(node_share(allocation, dealt, index, num_examples, seed))
    return held


def refusal(allocation: Allocation, domains: tuple[str, ...] = DOMAINS) -> str:
    """Return the message with which an allocation does not pass the check."""
    return refusal_of(ConfigError, allocation.check, domains)


# --- what a node holds -----------------------------------------------------------------------------------


@given(counts=counts_of_domains, num_examples=st.integers(5, 400), seed=st.integers(0, 2**31))
def test_equal_shares_are_disjoint_and_complete(counts: dict[str, int], num_examples: int, seed: int) -> None:
    allocation = Allocation(counts=counts, share="equal")
    dealt = allocation.deal(DOMAINS, sum(counts.values()), 0)
    for parts in shares_by_domain(allocation, dealt, num_examples, seed).values():
        together = np.concatenate(parts)
        # Every image exactly once, and nobody has more than one image above anybody else.
        assert np.array_equal(np.sort(together), np.arange(num_examples))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@given(
    nodes=st.integers(1, 6),
    portion=st.floats(0.05, 1.0),
    num_examples=st.integers(1, 400),
    seed=st.integers(0, 2**31),
)
def test_numeric_shares_are_disjoint_and_of_exact_size(
    nodes: int, portion: float, num_examples: int, seed: int
) -> None:
    share = portion / nodes
    size = round(share * num_examples)
    assume(size > 0)
    assume(size * nodes <= num_examples)  # the others: test_rounding_alone_never_asks_for_too_much
    allocation = Allocation(counts={"a": nodes}, share={"a": share})
    parts = shares_by_domain(allocation, allocation.deal(DOMAINS, nodes, 0), num_examples, seed)["a"]
    assert [len(part) for part in parts] == [size] * nodes
    together = np.concatenate(parts)
    assert len(np.unique(together)) == size * nodes
    assert together.min() >= 0
    assert together.max() < num_examples


@given(
    num_nodes=st.integers(2, 14),
    share=st.one_of(st.just("equal"), st.floats(0.1, 0.15)),
    num_examples=st.integers(30, 300),
    seed=st.integers(0, 2**31),
)
def test_indices_ascend_and_repeat(num_nodes: int, share: str | float, num_examples: int, seed: int) -> None:
    allocation = Allocation(share=share)
    dealt = allocation.deal(DOMAINS, num_nodes, 0)
    for index in range(num_nodes):
        first = node_share(allocation, dealt, index, num_examples, seed)
        assert first.dtype == np.int64
        assert np.all(np.diff(first) > 0)
        assert np.array_equal(first, node_share(allocation, dealt, index, num_examples, seed))


@given(seeds=st.lists(st.integers(0, 2**31), min_size=2, max_size=2, unique=True))
def test_another_seed_deals_other_images(seeds: list[int]) -> None:
    allocation = Allocation(counts={"a": 2}, share="equal")
    # 100 of 200 images: two draws are equal with probability 1 / C(200, 100), about 1e-59.
    first, second = (node_share(allocation, ("a", "a"), 0, 200, seed) for seed in seeds)
    assert not np.array_equal(first, second)


def test_domains_are_shuffled_apart() -> None:
    allocation = Allocation(counts={"a": 2, "b": 2})
    dealt = allocation.deal(DOMAINS, 4, 0)
    assert not np.array_equal(node_share(allocation, dealt, 0, 200, 0), node_share(allocation, dealt, 2, 200, 0))


def test_share_of_one_domain_alone_leaves_the_others_equal() -> None:
    allocation = Allocation(counts={"a": 2, "b": 2}, share={"a": 0.1})
    dealt = allocation.deal(DOMAINS, 4, 0)
    assert [len(node_share(allocation, dealt, i, 100, 0)) for i in range(4)] == [10, 10, 50, 50]


def test_shares_are_those_of_earlier_releases() -> None:
    """Runs are repeated by their seed: what a plain allocation deals must never change."""
    cases = (
        (Allocation(), ("a", "b", "a", "b", "a"), 101, 0, [2889689365, 2304226639, 3773735392, 2818020785, 3812127422]),
        (Allocation(counts={"a": 3}, share=0.1), ("a",) * 3, 997, 7, [327366243, 3981571943, 2246667520]),
        (Allocation(counts={"a": 2}, share=0.5), ("a",) * 2, 7291, 3, [1065061463, 2891696621]),
    )
    for allocation, dealt, num_examples, seed, checksums in cases:
        shares = (node_share(allocation, dealt, index, num_examples, seed) for index in range(len(dealt)))
        assert [zlib.crc32(share.astype("<i8").tobytes()) for share in shares] == checksums


@given(
    nodes=st.integers(1, 6), share=st.floats(0.05, 1.0), num_examples=st.integers(10, 400), seed=st.integers(0, 2**31)
)
def test_sizes_are_those_of_the_authors_loop(nodes: int, share: float, num_examples: int, seed: int) -> None:
    """FPL's and F2DC's code, slowly: ``left`` is shuffled, the node takes the first int(share * all) of it."""
    assume(share * (nodes - 1) < 1 - 1e-6)
    left, sizes = list(range(num_examples)), []
    for _ in range(nodes):
        taken = left[: int(share * num_examples)]
        left = left[int(share * num_examples) :]
        sizes.append(len(taken))
    assume(sizes[-1] > 0)
    allocation = Allocation(counts={"a": nodes}, share=share, rounding="down", last_takes_rest=True)
    allocation.check(DOMAINS)
    parts = shares_by_domain(allocation, ("a",) * nodes, num_examples, seed)["a"]
    assert [len(part) for part in parts] == sizes
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert together.max() < num_examples


def test_four_nodes_at_30_percent_and_the_last_takes_the_rest() -> None:
    """PACS sketch in I2PFL's allocation: 3,144 training images, three nodes with 943 of them, one with 315."""
    allocation = Allocation(counts={"a": 4}, share=0.3, rounding="down", last_takes_rest=True)
    parts = shares_by_domain(allocation, ("a",) * 4, 3144, 0)["a"]
    assert [len(part) for part in parts] == [943, 943, 943, 315]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(3144))


@pytest.mark.parametrize("rounding", ["nearest", "down"])
def test_who_takes_the_rest_changes_nothing_where_there_is_enough(rounding: Any) -> None:
    plain = Allocation(counts={"a": 3}, share=0.3, rounding=rounding)
    rest = plain.model_copy(update={"last_takes_rest": True})
    one, other = (shares_by_domain(allocation, ("a",) * 3, 1336, 5)["a"] for allocation in (plain, rest))
    assert [part.tolist() for part in one] == [part.tolist() for part in other]


@pytest.mark.parametrize(
    ("share", "num_examples", "nearest", "down"),
    [(0.3, 1336, 401, 400), (0.3, 1876, 563, 562), (0.2, 899, 180, 179), (0.01, 7291, 73, 72), (0.3, 1640, 492, 492)],
)
@pytest.mark.parametrize("replacement", [False, True])
def test_rounding(share: float, num_examples: int, nearest: int, down: int, replacement: bool) -> None:
    """Photo, cartoon, Caltech, USPS: we round, the authors' int() does not."""
    for rounding, size in (("nearest", nearest), ("down", down)):
        allocation = Allocation(
            counts={"a": 2},
            share=share,
            rounding=rounding,
            with_replacement=replacement,  # type: ignore[arg-type]
        )
        parts = shares_by_domain(allocation, ("a", "a"), num_examples, 0)["a"]
        assert [len(part) for part in parts] == [size] * 2


def test_too_few_images_are_reported_with_the_numbers() -> None:
    allocation = Allocation(share=0.5)  # any number of nodes: only the deal shows that a domain is asked for 150 %
    dealt = allocation.deal(("a", "b"), 6, 0)
    with pytest.raises(DataError) as caught:
        node_share(allocation, dealt, 0, 40, 0)
    for part in (
        "3 nodes of 'a'", "20 training images each", "60 together", "it has 40", "with_replacement", "last_takes_rest",
    ):  # fmt: skip
        assert part in str(caught.value)


@pytest.mark.parametrize(("share", "num_examples"), [("equal", 2), (0.01, 20)])
def test_a_node_without_an_image_is_reported(share: str | float, num_examples: int) -> None:
    allocation = Allocation(counts={"a": 3}, share=share)
    with pytest.raises(DataError) as caught:
        node_share(allocation, ("a", "a", "a"), 2, num_examples, 0)
    assert "node 2 gets no image" in str(caught.value)
    assert f"'a' has {num_examples} for 3 nodes" in str(caught.value)


@pytest.mark.parametrize(("nodes", "num_examples"), [(2, 7291), (2, 3), (4, 7291), (4, 359)])
def test_rounding_alone_never_asks_for_too_much(nodes: int, num_examples: int) -> None:
    """Two nodes with half of USPS each (7291 images): 3645.5 rounds to 3646, twice that is one too many."""
    allocation = Allocation(counts={"a": nodes}, share=1 / nodes)
    allocation.check(DOMAINS)
    parts = shares_by_domain(allocation, ("a",) * nodes, num_examples, 0)["a"]
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together) <= num_examples
    assert all(abs(len(part) - num_examples / nodes) <= 1 for part in parts)


# --- who holds which domain ------------------------------------------------------------------------------


@given(
    num_nodes=st.integers(2, 20),
    held_out=st.lists(st.sampled_from(DOMAINS), unique=True, max_size=2).map(tuple),
)
def test_any_deals_the_domains_in_turn(num_nodes: int, held_out: tuple[str, ...]) -> None:
    dealt = Allocation(held_out=held_out).deal(DOMAINS, num_nodes, 0)
    trained = [domain for domain in DOMAINS if domain not in held_out]
    assert len(dealt) == num_nodes
    assert all(domain == trained[i % len(trained)] for i, domain in enumerate(dealt))


@given(counts=counts_of_domains)
def test_counts_deal_blocks_in_the_order_of_the_domains(counts: dict[str, int]) -> None:
    allocation = Allocation(counts=counts)
    assert allocation.num_nodes() == sum(counts.values())
    dealt = allocation.deal(DOMAINS, sum(counts.values()), 0)
    assert dealt == tuple(domain for domain in DOMAINS for _ in range(counts.get(domain, 0)))


@given(
    more=st.integers(0, 40),
    held_out=st.lists(st.sampled_from(DOMAINS), unique=True, max_size=2).map(tuple),
    seed=st.integers(0, 2**31),
)
def test_random_counts_give_every_domain_a_node(more: int, held_out: tuple[str, ...], seed: int) -> None:
    trained = [domain for domain in DOMAINS if domain not in held_out]
    total = len(trained) + more
    allocation = Allocation(counts={"random": total}, held_out=held_out)
    allocation.check(DOMAINS)
    assert allocation.num_nodes() == total
    dealt = allocation.deal(DOMAINS, total, seed)
    assert len(dealt) == total
    assert set(dealt) == set(trained)
    assert list(dealt) == sorted(dealt)  # in the order of the domains
    assert dealt == allocation.deal(DOMAINS, total, seed)


def test_random_counts_differ_by_seed_and_reach_every_domain() -> None:
    allocation = Allocation(counts={"random": 12})
    drawn = [allocation.deal(DOMAINS, 12, seed) for seed in range(200)]
    assert len(set(drawn)) > 20
    # Nine nodes are drawn over three domains, after the first of each: four a domain on average, spread 1.4 a draw.
    for domain in DOMAINS:
        assert abs(np.mean([dealt.count(domain) for dealt in drawn]) - 4) < 0.5


def test_random_counts_are_reported_where_nodes_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="needs 9 nodes") as caught:
        Allocation(counts={"random": 9}).deal(DOMAINS, 4, 0)
    assert "has 4" in str(caught.value)


def test_any_needs_no_fixed_number_of_nodes() -> None:
    assert Allocation().num_nodes() is None


def test_held_out_domains_are_not_trained_on() -> None:
    allocation = Allocation(held_out=("b",))
    assert allocation.training_domains(DOMAINS) == ("a", "c")
    assert allocation.deal(DOMAINS, 5, 0) == ("a", "c", "a", "c", "a")


def test_counts_with_a_held_out_domain_agree_with_themselves() -> None:
    """Either the contradiction is refused, or the number of nodes that is needed is the number that is dealt."""
    allocation = Allocation(counts={"a": 2, "b": 2}, held_out=("a",))
    try:
        allocation.check(DOMAINS)
    except ConfigError:
        return
    needed = allocation.num_nodes()
    assert needed is not None
    assert len(allocation.deal(DOMAINS, needed, 0)) == needed


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "allocation"),
    [
        ("counts", Allocation(counts={"moon": 2})),
        ("share", Allocation(share={"moon": 0.1})),
        ("held_out", Allocation(held_out=("moon",))),
    ],
)
def test_unknown_domain(key: str, allocation: Allocation) -> None:
    message = refusal(allocation)
    assert f"allocation.{key}" in message
    assert "'moon'" in message
    assert "a, b, c" in message


def test_no_domain_left_to_train_on() -> None:
    assert "allocation.held_out" in refusal(Allocation(held_out=DOMAINS))


def test_too_few_random_nodes() -> None:
    message = refusal(Allocation(counts={"random": 2}))
    assert "allocation.counts: 2 nodes" in message
    assert "3 domains a, b, c" in message


def test_random_stands_alone() -> None:
    with pytest.raises(ValidationError, match="stands alone, found"):
        Allocation(counts={"random": 3, "a": 1})


def test_with_replacement_allows_more_than_all() -> None:
    Allocation(counts={"b": 4}, share=0.3, with_replacement=True).check(DOMAINS)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"with_replacement": True}, "needs a number under share"),
        ({"share_per": "domain"}, "share_per=domain needs a number under share"),
        ({"share_per": "domain", "share": 0.3, "with_replacement": True}, "found share=0.3, with_replacement=true"),
        ({"with_replacement": True, "share": 0.3, "label_skew": 1.0}, "exclude each other"),
        (
            {"with_replacement": True, "share": 0.3, "test_fraction": 0.2},
            "with_replacement and test_fraction exclude each other.*found with_replacement=true, test_fraction=0.2",
        ),
        (
            {"with_replacement": True, "share": 0.3, "mixing": 0.5},
            "with_replacement and mixing exclude each other.*found with_replacement=true, mixing=0.5",
        ),
        ({"last_takes_rest": True}, "last_takes_rest needs a number under share"),
        ({"last_takes_rest": True, "share": 0.3, "with_replacement": True}, "last_takes_rest and with_replacement"),
        ({"last_takes_rest": True, "share": 0.3, "label_skew": 1.0}, "last_takes_rest and label_skew exclude"),
        ({"last_takes_rest": True, "share": 0.3, "share_per": "domain"}, "last_takes_rest and share_per=domain"),
        ({"rounding": "up"}, "'nearest' or 'down'"),
        ({"test_on": "train"}, "'split' or 'domain'"),
        ({"test_on": "domain", "test_fraction": 0.2}, "test_on=domain and test_fraction exclude each other"),
        ({"label_skew": 0}, "greater than 0"),
        ({"label_skew": -1}, "greater than 0"),
        ({"label_skew": float("nan")}, "finite number"),
        ({"label_skew": float("inf")}, "finite number"),
        ({"test_fraction": 1}, "less than 1"),
        ({"test_fraction": -0.1}, "greater than or equal to 0"),
        ({"validation_fraction": 1}, "less than 1"),
        ({"validation_fraction": float("nan")}, "finite number"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Allocation(**settings)


@pytest.mark.parametrize("share", [0.4, {"b": 0.4}])
def test_more_than_all_of_a_domain(share: float | dict[str, float]) -> None:
    message = refusal(Allocation(counts={"b": 3}, share=share))
    for part in ("3 nodes of 'b'", "40 %", "120 %", "allowed is 100 %", "with_replacement or last_takes_rest"):
        assert part in message


def test_nothing_is_left_for_the_last() -> None:
    Allocation(counts={"b": 4}, share=0.3, last_takes_rest=True).check(DOMAINS)
    for nodes, share in ((5, 0.3), (2, 1.0), (3, 0.5)):
        message = refusal(Allocation(counts={"b": nodes}, share=share, last_takes_rest=True))
        assert f"{nodes - 1} node{'s' * (nodes > 2)} of 'b' with {100 * share:g} %" in message
        assert f"nothing for the last of {nodes}" in message
    free = Allocation(share=0.3, last_takes_rest=True)  # any number of nodes: only the deal shows it
    with pytest.raises(DataError, match="node 4 gets no image: domain 'a' has 100 for 5 nodes"):
        node_share(free, ("a",) * 5, 4, 100, 0)


@given(nodes=st.integers(1, 20), share=st.floats(0.05, 1), num_examples=st.integers(400, 900))
def test_nodes_divide_the_share_of_their_domain(nodes: int, share: float, num_examples: int) -> None:
    """As many nodes as there may be hold the images that one node would hold, each nearly as many as any other."""
    labels = np.zeros(num_examples, np.int64)
    allocation = Allocation(counts={"a": nodes}, share=share, share_per="domain")
    allocation.check(("a",))
    parts = [node_parts(allocation, ("a",) * nodes, i, labels, 1, 0).train for i in range(nodes)]
    alone = node_parts(Allocation(counts={"a": 1}, share=share), ("a",), 0, labels, 1, 0).train
    assert np.array_equal(np.sort(np.concatenate(parts)), alone)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_all_of_a_domain_is_allowed() -> None:
    Allocation(counts={"a": 3, "b": 10}, share={"a": 1 / 3, "b": 0.1}).check(DOMAINS)


@pytest.mark.parametrize("num_nodes", [1, 4, 6])
def test_number_of_nodes_that_does_not_fit(num_nodes: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Allocation(counts={"a": 2, "c": 3}).deal(DOMAINS, num_nodes, 0)
    message = str(caught.value)
    assert "needs 5 nodes (a 2, b 0, c 3)" in message
    assert f"has {num_nodes}" in message
    # What would do, in the words of every command that takes a number of nodes.
    assert message.endswith("; leave nodes= out, give nodes=5, or change allocation.counts")


@pytest.mark.parametrize("num_nodes", [-1, 0, 1])
def test_a_federation_needs_two_nodes(num_nodes: int) -> None:
    with pytest.raises(ConfigError, match=f"at least 2 nodes, found {num_nodes}"):
        Allocation().deal(DOMAINS, num_nodes, 0)


@pytest.mark.parametrize("counts", [{"a": -1}, {"a": 3, "b": -2}, {"a": 0}, {}])
def test_counts_are_not_negative_and_not_all_zero(counts: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="expected any, or nodes per domain") as caught:
        Allocation(counts=counts)
    for domain, number in counts.items():
        assert number > 0 or f"'{domain}': {number}" in str(caught.value)


@pytest.mark.parametrize("value", [0, -0.1, 1.01, float("nan"), float("inf")])
def test_share_out_of_range(value: float) -> None:
    for share in (value, {"a": 0.5, "b": value}):
        with pytest.raises(ValidationError, match="a number above 0 and at most 1") as caught:
            Allocation(share=share)
        assert str(value) in str(caught.value)


@pytest.mark.parametrize(
    "share",
    [
        {"share": "equal"}, {"share": 0.1}, {"share": 0.2, "with_replacement": True},
        {"share": 0.5, "share_per": "domain"}, {"share": 0.3, "last_takes_rest": True},
    ],
)  # fmt: skip
@pytest.mark.parametrize("public", [0.0, 0.1])
def test_what_a_node_of_many_holds_is_worked_out_when_it_is_asked_for(share: dict[str, Any], public: float) -> None:
    if public and share.get("last_takes_rest"):
        public = 0.01
    nodes, labels = 4, np.arange(60) % 3
    dealt = ("b", *("a",) * nodes, "b")
    allocation = Allocation(counts={"a": nodes, "b": 2}, **share)
    parts = domain_parts(allocation, dealt, "a", labels, 3, 1, public)
    assert isinstance(parts, DomainParts)
    assert list(parts) == [1, 2, 3, 4]
    for index in parts:
        alone = node_parts(allocation, dealt, index, labels, 3, 1, public)
        assert np.array_equal(parts[index].train, alone.train)
        assert len(parts[index].test) == len(parts[index].validation) == 0
    with pytest.raises(KeyError):
        parts[0]


def test_a_hundred_thousand_nodes_take_no_memory_of_their_own() -> None:
    allocation = Allocation(share=0.5, with_replacement=True)
    parts = domain_parts(allocation, ("a",) * 100_000, "a", np.zeros(30, np.int64), 1, 0)
    assert isinstance(parts, DomainParts)
    for index in range(2 * MOST_KEPT):
        assert len(parts[index].train) == 15
    assert len(parts._kept) == MOST_KEPT
    assert parts[99_999] is parts[99_999]


def test_the_first_node_without_an_image_is_named() -> None:
    with pytest.raises(DataError, match=r"node 3 gets no image: domain 'a' has 3 for 5 nodes"):
        domain_parts(Allocation(), ("a",) * 5, "a", np.zeros(3, np.int64), 1, 0)
