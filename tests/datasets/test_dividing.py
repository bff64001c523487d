"""Nodes divide a domain: disjoint, of exact size, every class where that is asked for, and the same each time."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import refused, worded

from fedshift_core.errors import DataError
from fedshift_core.seeding import generator
from fedshift_datasets.partition import shares
from fedshift_datasets.partition.allocation import Allocation
from fedshift_datasets.partition.shares import exchanged
from fedshift_datasets.partition.splits import Parts, domain_parts, mixed_test, public_part

PARTS = ("train", "validation", "test")
seeds = st.integers(0, 2**31)
#: How many images a domain has of each class.
class_counts = st.lists(st.integers(0, 60), min_size=1, max_size=8)
full_counts = st.lists(st.integers(6, 60), min_size=1, max_size=6)
ample_counts = st.lists(st.integers(30, 60), min_size=1, max_size=6)
#: Ways to divide a domain so that no two nodes hold the same image; None is all.
disjoint = st.fixed_dictionaries(
    {"portion": st.one_of(st.none(), st.floats(0.05, 1.0)), "label_skew": st.one_of(st.none(), st.floats(1e-6, 1e6))}
)


def labels_of(counts: list[int]) -> NDArray[np.int64]:
    """Return labels as numerous as given, not in their order."""
    return generator(0, "labels").permutation(np.repeat(np.arange(len(counts)), counts))


def deal(counts: list[int], nodes: int, seed: int, **chosen: Any) -> list[Parts]:
    """Deal one domain to its nodes."""
    labels, allocation = labels_of(counts), Allocation(counts={"a": nodes}, **chosen)
    parts = domain_parts(allocation, ("a",) * nodes, "a", labels, len(counts), seed)
    return [parts[i] for i in range(nodes)]


def whole(*parts: Parts) -> NDArray[np.int64]:
    """Return all that nodes hold, ascending."""
    return np.sort(np.concatenate([getattr(each, name) for each in parts for name in PARTS]))


def share_for(nodes: int, portion: float | None) -> str | float:
    """Return the share with which nodes together take a portion of their domain."""
    return "equal" if portion is None else portion / nodes


# --- every way of dividing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "chosen", "named"),
    [
        ([20, 2, 20], {"class_coverage": True}, "class_coverage 'a' 2 1 3"),
        ([20] * 3, {"class_coverage": True, "share": 0.03}, "class_coverage 2 3"),
        ([2], {"label_skew": 1.0}, "'a' 2 3"),
        ([1, 1, 1], {"test_fraction": 0.5}, "allocation.test_fraction node 0"),
        ([1, 1, 1], {"validation_fraction": 0.5}, "allocation.validation_fraction node 0"),
    ],
)
def test_what_too_few_images_cannot_give_is_reported(counts: list[int], chosen: dict[str, Any], named: str) -> None:
    with refused(DataError, *named.split()):
        deal(counts, 3, 0, **chosen)


def test_a_class_that_is_not_there_cannot_be_drawn() -> None:
    with refused(DataError, "shift.label_mix=own", "node 1", "'a'", "6 images of class 1"):
        mixed_test(("a", "b"), 1, "a", np.array([1, 3]), np.zeros(8, np.int64), 0)


# --- class coverage --------------------------------------------------------------------------------------


@given(counts=st.lists(st.integers(4, 30), min_size=1, max_size=6), nodes=st.integers(1, 4), seed=seeds, ways=disjoint)
def test_coverage_gives_every_node_every_class_and_keeps_sizes(
    counts: list[int], nodes: int, seed: int, ways: dict[str, Any]
) -> None:
    share = share_for(nodes, ways["portion"])
    assume(share == "equal" or round(float(share) * sum(counts)) > 0)
    dealt = partial(deal, counts, nodes, seed, share=share, label_skew=ways["label_skew"])
    sizes = [len(parts.train) for parts in dealt()]
    assume(min(sizes) >= len(counts))
    covered = dealt(class_coverage=True)
    assert [len(parts.train) for parts in covered] == sizes
    assert (np.diff(whole(*covered)) > 0).all()
    for parts in covered:
        assert set(labels_of(counts)[parts.train]) == set(range(len(counts)))


# --- with replacement ------------------------------------------------------------------------------------


@given(counts=full_counts, nodes=st.integers(1, 6), seed=seeds, share=st.floats(0.2, 1.0), cover=st.booleans())
def test_with_replacement_every_node_has_its_share(
    counts: list[int], nodes: int, seed: int, share: float, cover: bool
) -> None:
    size = round(share * sum(counts))
    assume(size >= len(counts))
    for parts in deal(counts, nodes, seed, share=share, with_replacement=True, class_coverage=cover):
        assert len(np.unique(parts.train)) == len(parts.train) == size
        assert not cover or len(np.unique(labels_of(counts)[parts.train])) == len(counts)


# --- label skew ------------------------------------------------------------------------------------------


# --- a node's own test and validation part ---------------------------------------------------------------


@given(
    counts=ample_counts,
    nodes=st.integers(1, 3),
    seed=seeds,
    test=st.floats(0.05, 0.5),
    validation=st.just(0.0) | st.floats(0.05, 0.6),
)
def test_parts_of_a_node_make_up_what_it_holds(
    counts: list[int], nodes: int, seed: int, test: float, validation: float
) -> None:
    labels = labels_of(counts)
    ways = (
        deal(counts, nodes, seed, test_fraction=t, validation_fraction=v)
        for t, v in ((0, 0), (test, 0), (test, validation))
    )
    for plain, tested, parts in zip(*ways, strict=True):
        assert np.array_equal(whole(parts), plain.train)
        assert np.array_equal(parts.test, tested.test)  # whatever is validated on
        assert [len(getattr(parts, name)) > 0 for name in PARTS] == [True, validation > 0, True]
        # Every class that a node holds is trained on.
        assert set(labels[plain.train]) == set(labels[parts.train])


@given(counts=class_counts, fraction=st.floats(0.01, 0.99), seed=seeds)
def test_cut_keeps_classes_in_proportion(counts: list[int], fraction: float, seed: int) -> None:
    labels = labels_of(counts)
    assume(len(labels) > 0)
    images = np.flatnonzero(np.arange(len(labels)) % 3 != 1)
    rest, off = shares.cut(images, labels, fraction, generator(seed, "cut"))
    assert np.array_equal(np.sort(np.concatenate([rest, off])), images)
    have, taken = (np.bincount(labels[part], minlength=len(counts)) for part in (images, off))
    spare = int(np.maximum(have - 1, 0).sum())
    assert len(off) == min(max(1, round(fraction * len(images))), spare)
    assert np.all(taken <= np.maximum(have - 1, 0))
    # Within one of the exact share, unless images of classes that are there once were to be made up for.
    singles = np.count_nonzero(fraction * have > have - 1)
    assert np.all(np.abs(taken - fraction * have) <= 1 + singles)


def grouped(
    nodes: int, groups: NDArray[np.str_], seed: int, public: float = 0.0, *, only_test: bool = False, **chosen: Any
) -> list[Parts]:
    """Deal one domain of two classes to its nodes, by group."""
    labels, allocation = labels_of([len(groups) // 2] * 2), Allocation(counts={"a": nodes}, **chosen)
    dealt = ("a",) * nodes
    parts = domain_parts(allocation, dealt, "a", labels, 2, seed, public, groups, only_test=only_test)
    return list(parts.values())


PATIENTS = np.array([f"P{place % 15}" for place in range(120)])


@pytest.mark.parametrize("public", [0.0, 0.2])
@pytest.mark.parametrize(("test", "validation"), [(0.2, 0.0), (0.0, 0.2), (0.2, 0.2)])
@pytest.mark.parametrize(
    ("nodes", "more"),
    [
        (1, {}),
        (3, {}),
        (3, {"label_skew": 0.5}),
        (3, {"share": 0.2}),
        (3, {"share": 0.4, "with_replacement": True}),
        (3, {"share": 0.2, "class_coverage": True}),
    ],
)
def test_a_patient_is_in_one_part(
    nodes: int, more: dict[str, Any], test: float, validation: float, public: float
) -> None:
    """No other node of the domain, which may hold other images of the patient, has them in another part."""
    test = 0.0 if "with_replacement" in more else test  # the two keys exclude each other
    parts = grouped(nodes, PATIENTS, 0, public, test_fraction=test, validation_fraction=validation, **more)
    sides = {name: {who for each in parts for who in PATIENTS[getattr(each, name)]} for name in PARTS}
    if public:
        sides["public"] = set(PATIENTS[public_part("a", np.zeros(120, np.int64), public, 0, PATIENTS)])
    assert sum(map(len, sides.values())) == len(set.union(*sides.values())) <= 15
    wanted = {"train": 1.0, "validation": validation, "test": test, "public": public}
    assert all(bool(sides.get(name)) == bool(fraction) for name, fraction in wanted.items())
    assert more or len(whole(*parts)) == 120 - round(120 * public)


@pytest.mark.parametrize("patients", [2, 3, 8])
def test_a_few_patients_have_a_validation_part(patients: int) -> None:
    """One of them is in it, however small it is to be, and no class goes with it that others have."""
    groups = np.repeat([f"P{place}" for place in range(patients)], 12)
    labels = np.array([0, 1] * (6 * patients))
    labels[:12] = 2
    chosen = shares.part_of_groups("validation", np.arange(len(labels)), labels, groups, 0.05, 0)
    assert len(set(groups[chosen])) == 1 and (patients == 2 or "P0" not in groups[chosen])


def test_a_single_patient_cannot_be_cut(caplog: pytest.LogCaptureFixture) -> None:
    (parts,) = grouped(1, np.full(10, "P1"), 0, validation_fraction=0.2)
    assert len(parts.train) == 10
    worded(*caplog.messages, "'a'", 10)
    with refused(DataError, "allocation.test_fraction", "node 0", "10 images of 'a'"):
        grouped(1, np.full(10, "P1"), 0, test_fraction=0.2)


# --- a test set drawn after a node's labels --------------------------------------------------------------

mixes = st.lists(st.integers(0, 5000), min_size=1, max_size=8).filter(any)


@given(mix=mixes, size=st.integers(0, 3000))
def test_largest_remainders_are_rounded_up(mix: list[int], size: int) -> None:
    drawn = shares.largest_remainders(np.array(mix), size)
    whole, rest = np.divmod(size * np.array(mix), sum(mix))
    up = drawn > whole
    assert drawn.dtype == np.int64 and drawn.sum() == size
    assert np.array_equal(drawn, whole + up)
    assert not up.any() or up.all() or rest[up].min() >= rest[~up].max()


@given(counts=full_counts, data=st.data(), size=st.integers(0, 400), seed=seeds)
def test_a_drawn_test_set_has_the_mix_and_repeats_only_what_ran_out(
    counts: list[int], data: st.DataObject, size: int, seed: int
) -> None:
    labels = labels_of(counts)
    mix = np.array(data.draw(st.lists(st.integers(0, 900), min_size=len(counts), max_size=len(counts)).filter(any)))
    first, second = (shares.draw_mix(labels, mix, size, generator(seed, "mix"), "here") for _ in range(2))
    assert first.dtype == np.int64 and np.array_equal(first, second) and np.all(np.diff(first) >= 0)
    wanted = shares.largest_remainders(mix, size)
    assert np.array_equal(np.bincount(labels[first], minlength=len(counts)), wanted)
    # Each image of a class once at most, or, where there are too few, once at least.
    distinct = np.bincount(labels[np.unique(first)], minlength=len(counts))
    assert np.array_equal(distinct, np.minimum(wanted, counts))


@given(counts=full_counts, nodes=st.integers(1, 30), seed=seeds)
def test_nodes_that_answer_for_a_domain_get_equal_test_sets(counts: list[int], nodes: int, seed: int) -> None:
    labels, mix = labels_of(counts), np.ones(len(counts), np.int64)
    dealt = ("a",) * nodes + ("b",)
    for domain, answering in (("a", nodes), ("b", 1), ("held out", nodes + 1)):
        sizes = {len(mixed_test(dealt, index, domain, mix, labels, seed)) for index in range(len(dealt))}
        assert sizes == {max(1, len(labels) // answering)}


@given(counts=class_counts, nodes=st.integers(1, 6), groups=st.integers(1, 40), seed=seeds)
def test_images_of_a_group_stay_with_one_node(counts: list[int], nodes: int, groups: int, seed: int) -> None:
    labels = labels_of(counts)
    names = np.array([f"P{i % groups}" if i % 3 else f"alone {i}" for i in range(len(labels))], np.str_)
    parts = shares.spread_groups(
        labels, np.where(np.char.startswith(names, "P"), names, ""), nodes, generator(seed, "t")
    )
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    if len(set(names)) >= nodes:
        assert sum(len(set(names[part])) for part in parts) == len(set(names))
    plain = shares.spread_groups(labels, None, nodes, generator(seed, "t"))
    counted = np.array([np.bincount(labels[part], minlength=len(counts)) for part in plain])
    assert (np.ptp(counted, axis=0) <= 1).all()  # each class over all nodes


# --- nodes of several domains -------------------------------------------------------------------------


@settings(max_examples=50)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), min_size=2, max_size=8),
    mixing=st.floats(0, 1), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_each_node_gets_the_common_mixture_for_what_it_gives(
    sizes: list[tuple[int, int]], mixing: float, seed: int
) -> None:
    homes = [f"d{domain}" for domain, _ in sizes]
    held = [np.arange(100 * node, 100 * node + size) for node, (_, size) in enumerate(sizes)]  # says who had it
    gave = [round(mixing * size) for _, size in sizes]
    pool = {name: sum(g for home, g in zip(homes, gave, strict=True) if home == name) for name in homes}
    for node, parts in enumerate(exchanged(homes, held, mixing, "train", seed)):
        kept = sizes[node][1] - gave[node]
        got = {name: len(parts.get(name, [])) - kept * (name == homes[node]) for name in pool}
        assert sum(got.values()) == gave[node]
        for name, number in got.items():  # proportional, to within one image of each domain
            assert abs(number - gave[node] * pool[name] / max(1, sum(pool.values()))) <= 1 + len(pool) / 2
