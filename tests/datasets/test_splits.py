"""Which node holds what: shares are disjoint, of the promised size and repeatable; what cannot be dealt is an error."""

import zlib
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError
from refusals import refused, worded

from fedshift_core.errors import ConfigError, DataError
from fedshift_datasets.partition.allocation import Allocation
from fedshift_datasets.partition.splits import domain_parts

DOMAINS = ("a", "b", "c")

counts_of_domains = st.dictionaries(st.sampled_from(DOMAINS), st.integers(0, 5), min_size=1).filter(
    lambda counts: sum(counts.values()) > 0
)


held_out_domains = st.lists(st.sampled_from(DOMAINS), unique=True, max_size=2).map(tuple)


def stated(settings: str) -> Allocation:
    """Return an allocation as a person states it: ``share=0.3 counts={b: 5}``."""
    pairs = (pair.split("=") for pair in settings.split(" & "))
    return Allocation(**{key: yaml.safe_load(value) for key, value in pairs})


def node_share(
    allocation: Allocation, dealt: tuple[str, ...], index: int, num_examples: int, seed: int
) -> NDArray[np.int64]:
    """Return what a node trains on where labels do not matter."""
    return domain_parts(allocation, dealt, dealt[index], np.zeros(num_examples, np.int64), 1, seed)[index].train


def shares_of(allocation: Allocation, nodes: int, num_examples: int, seed: int) -> list[NDArray[np.int64]]:
    """Return what each node of one domain trains on; no two the same image."""
    allocation.check(DOMAINS)
    parts = [node_share(allocation, ("a",) * nodes, index, num_examples, seed) for index in range(nodes)]
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together) and together.max() < num_examples
    return parts


# --- what a node holds -----------------------------------------------------------------------------------


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
    assert [len(part) for part in shares_of(allocation, nodes, num_examples, seed)] == sizes


@pytest.mark.parametrize(("nodes", "num_examples"), [(2, 7291), (2, 3), (4, 7291), (4, 359)])
def test_rounding_alone_never_asks_for_too_much(nodes: int, num_examples: int) -> None:
    """Two nodes with half of USPS each (7291 images): 3645.5 rounds to 3646, twice that is one too many."""
    for part in shares_of(Allocation(counts={"a": nodes}, share=1 / nodes), nodes, num_examples, 0):
        assert abs(len(part) - num_examples / nodes) <= 1


# --- who holds which domain ------------------------------------------------------------------------------


@given(counts=counts_of_domains)
def test_counts_deal_blocks_in_the_order_of_the_domains(counts: dict[str, int]) -> None:
    allocation = Allocation(counts=counts)
    wanted = tuple(domain for domain in DOMAINS for _ in range(counts.get(domain, 0)))
    assert allocation.num_nodes() == len(wanted)
    assert allocation.deal(DOMAINS, len(wanted), 0) == wanted


@given(more=st.integers(0, 40), held_out=held_out_domains, seed=st.integers(0, 2**31))
def test_random_counts_give_every_domain_a_node(more: int, held_out: tuple[str, ...], seed: int) -> None:
    trained = [domain for domain in DOMAINS if domain not in held_out]
    total = len(trained) + more
    allocation = Allocation(counts={"random": total}, held_out=held_out)
    allocation.check(DOMAINS)
    dealt = allocation.deal(DOMAINS, total, seed)
    assert allocation.num_nodes() == len(dealt) == total
    assert set(dealt) == set(trained)
    assert list(dealt) == sorted(dealt)  # in the order of the domains
    assert dealt == allocation.deal(DOMAINS, total, seed)


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("with_replacement=true", "with_replacement share"),
        ("share_per=domain", "share_per=domain"),
        ("share_per=domain & share=0.3 & with_replacement=true", "share_per=domain with_replacement=true"),
        ("with_replacement=true & share=0.3 & label_skew=1.0", "with_replacement label_skew"),
        ("with_replacement=true & share=0.3 & test_fraction=0.2", "with_replacement=true test_fraction=0.2"),
        ("with_replacement=true & share=0.3 & mixing=0.5", "with_replacement=true mixing=0.5"),
        ("last_takes_rest=true", "last_takes_rest share"),
        ("last_takes_rest=true & share=0.3 & with_replacement=true", "last_takes_rest with_replacement"),
        ("last_takes_rest=true & share=0.3 & label_skew=1.0", "last_takes_rest label_skew"),
        ("last_takes_rest=true & share=0.3 & share_per=domain", "last_takes_rest share_per=domain"),
        ("rounding=up", "rounding"),
        ("test_on=train", "test_on"),
        ("test_on=domain & test_fraction=0.2", "test_on=domain test_fraction"),
        ("label_skew=0", "label_skew"),
        ("label_skew=.inf", "label_skew"),
        ("test_fraction=1", "test_fraction"),
        ("validation_fraction=.nan", "validation_fraction"),
        ("counts={random: 3, a: 1}", "random"),
        ("counts={a: 3, b: -2}", "counts 'b': -2"),
        ("counts={a: 0}", "counts 'a': 0"),
        ("counts={}", "counts"),
        ("share=0", "share 0"),
        ("share={a: 0.5, b: 1.01}", "share 1.01"),
        ("share=.nan", "share nan"),
    ],
)
def test_settings_that_make_no_sense(settings: str, named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        stated(settings)
    worded(str(caught.value).partition("\n    For further information")[0], *named.split())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ("counts={moon: 2}", "allocation.counts 'moon' a, b, c"),
        ("share={moon: 0.1}", "allocation.share 'moon' a, b, c"),
        ("held_out=[moon]", "allocation.held_out 'moon' a, b, c"),
        ("held_out=[a, b, c]", "allocation.held_out"),
        ("counts={a: 2} & held_out=[a]", "'a' 2"),
        ("counts={random: 2}", "allocation.counts 2 3 a, b, c"),
        ("counts={b: 3} & share=0.4", "'b' 3 40 120"),
        ("counts={b: 3} & share={b: 0.4}", "'b' 3 40 120"),
        ("counts={b: 5} & share=0.3 & last_takes_rest=true", "'b' 4 30 5"),
        ("counts={b: 4} & share=0.3 & last_takes_rest=true", ""),
        ("counts={b: 4} & share=0.3 & with_replacement=true", ""),
        ("counts={a: 3, b: 10} & share={a: 0.3333333333333333, b: 0.1}", ""),
    ],
)
def test_an_allocation_is_held_against_the_domains(settings: str, named: str) -> None:
    with refused(ConfigError, *named.split()) if named else nullcontext():
        stated(settings).check(DOMAINS)


@pytest.mark.parametrize(
    ("counts", "num_nodes", "named"),
    [
        ({"a": 2, "c": 3}, 4, "5 4 nodes=5 allocation.counts"),
        ({"a": 2, "c": 3}, 6, "5 6 nodes=5 allocation.counts"),
        ({"random": 9}, 4, "9 4"),
        ("any", 1, "2 1"),
        ("any", -1, "2 -1"),
    ],
)
def test_number_of_nodes_that_does_not_fit(counts: Any, num_nodes: int, named: str) -> None:
    with refused(ConfigError, *named.split()):
        Allocation(counts=counts).deal(DOMAINS, num_nodes, 0)


@pytest.mark.parametrize(
    ("settings", "num_examples", "named"),
    [
        ("share=0.5", 40, "5 'a' 20 100 40"),
        ("share=equal", 4, "node 4 'a' 5"),
        ("share=0.01", 20, "node 'a' 20 5"),
        ("share=0.3 & last_takes_rest=true", 100, "node 4 'a' 100 5"),
    ],
)
def test_only_the_deal_shows_that_images_are_too_few(settings: str, num_examples: int, named: str) -> None:
    with refused(DataError, *named.split()):
        domain_parts(stated(settings), ("a",) * 5, "a", np.zeros(num_examples, np.int64), 1, 0)


@given(nodes=st.integers(1, 20), share=st.floats(0.05, 1), num_examples=st.integers(400, 900))
def test_nodes_divide_the_share_of_their_domain(nodes: int, share: float, num_examples: int) -> None:
    """As many nodes as there may be hold the images that one node would hold, each nearly as many as any other."""
    parts = shares_of(Allocation(counts={"a": nodes}, share=share, share_per="domain"), nodes, num_examples, 0)
    (alone,) = shares_of(Allocation(counts={"a": 1}, share=share), 1, num_examples, 0)
    assert np.array_equal(np.sort(np.concatenate(parts)), alone)
    assert np.ptp([len(part) for part in parts]) <= 1
