"""The split that is drawn where nobody says: by class, by group, from names alone."""

import itertools
from collections import Counter

import numpy as np
import pytest

from fedshift_datasets.partition.stratified import test_part as split
from fedshift_datasets.partition.stratified import uncovered


def names(n: int, kind: str) -> list[str]:
    return [f"{kind}/{i:03}.png" for i in range(n)]


def test_every_class_has_its_share_and_at_least_one_image_on_both_sides() -> None:
    """The case of issue 23: 8 normal, 22 benign, 2 malignant images gave a test set of benign ones alone."""
    labels = [0] * 8 + [1] * 22 + [2] * 2 + [3]
    units = names(8, "normal") + names(22, "benign") + names(2, "malignant") + names(1, "rare")
    test = split(labels, units, 0.2, 0)
    result = Counter(np.array(labels)[test].tolist())
    assert (result[0], result[1], result[2], result[3]) == (2, 4, 1, 0)
    assert uncovered(labels, test) == [(3, True)]  # one image: it is trained on


def test_without_groups_a_share_is_rounded_between_one_and_all_but_one() -> None:
    for n, share in itertools.product([2, 3, 4, 5, 7, 10, 49, 100], [0.1, 0.2, 0.5, 0.9]):
        test = split([0] * n, names(n, "a"), share, 3)
        assert 1 <= test.sum() <= n - 1, (n, share)
        assert abs(test.sum() - share * n) <= 0.5 + 1e-9 or test.sum() in (1, n - 1), (n, share)


def test_the_split_goes_by_names_not_by_order_and_by_the_seed() -> None:
    labels, units = np.repeat([0, 1], [30, 20]), np.array(names(30, "a") + names(20, "b"))
    order = np.random.default_rng(1).permutation(50)
    one = split(labels.tolist(), units.tolist(), 0.2, 0)
    assert np.array_equal(one[order], split(labels[order].tolist(), units[order].tolist(), 0.2, 0))
    assert not np.array_equal(one, split(labels.tolist(), units.tolist(), 0.2, 1))
    # Written down once: the same on every machine and in every version.
    assert units[one][:3].tolist() == ["a/000.png", "a/004.png", "a/008.png"]


@pytest.mark.parametrize("seed", [3, 18, 19, 26])
def test_groups_stay_together_and_shares_are_near(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 40, 300)
    kinds = np.where(rng.random(300) < 0.7, groups % 3, rng.integers(0, 3, 300))
    test = split(kinds.tolist(), [f"/p{group}" for group in groups], 0.2, seed)
    sides = {(group, side) for group, side in zip(groups.tolist(), test.tolist(), strict=True)}
    assert len(sides) == len(set(groups.tolist()))
    for kind in range(3):
        of_kind = test[kinds == kind]
        assert abs(of_kind.mean() - 0.2) < 0.04
    assert uncovered(kinds.tolist(), test) == []


def test_a_class_in_two_groups_is_on_both_sides_and_one_in_a_single_group_is_reported() -> None:
    labels = [0] * 20 + [1, 1, 1, 2, 2]
    units = [f"/p{i // 2}" for i in range(20)] + ["/q", "/q", "/r", "/s", "/s"]
    test = split(labels, units, 0.2, 0)
    assert {bool(side) for side, label in zip(test, labels, strict=True) if label == 1} == {True, False}
    assert [label for label, _ in uncovered(labels, test)] == [2]
