"""Nodes of several domains: sizes stay, no image is lost, and the common mixture is the same for all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift_datasets.partition.mixing import exchanged

SIZES = {"photo": (40, 25), "art": (60,), "sketch": (30, 30, 45)}


def nodes() -> tuple[list[str], list[np.ndarray]]:
    homes = [domain for domain, sizes in SIZES.items() for _ in sizes]
    held = []
    for sizes in SIZES.values():
        cuts = np.cumsum(sizes)
        held += np.split(np.arange(cuts[-1]), cuts[:-1])
    return homes, held


@pytest.mark.parametrize("mixing", [0.0, 0.3, 0.5, 1.0])
def test_nodes_keep_their_sizes_and_together_their_images(mixing: float) -> None:
    homes, held = nodes()
    after = exchanged(homes, held, mixing, "train", 3)
    assert [sum(map(len, parts.values())) for parts in after] == [len(images) for images in held]
    for domain in SIZES:
        before = np.concatenate([images for home, images in zip(homes, held, strict=True) if home == domain])
        now = np.concatenate([parts.get(domain, before[:0]) for parts in after])
        assert np.array_equal(np.sort(now), np.sort(before))


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


def test_draws_follow_from_the_seed_and_the_purpose() -> None:
    homes, held = nodes()
    first, again, other, validation = (
        exchanged(homes, held, 0.5, purpose, seed)
        for purpose, seed in (("train", 1), ("train", 1), ("train", 2), ("validation", 1))
    )
    same = [all(np.array_equal(a[d], b[d]) for d in a) for a, b in zip(first, again, strict=True)]
    assert all(same)
    for changed in (other, validation):
        assert any(a.keys() != b.keys() or any(not np.array_equal(a[d], b[d]) for d in a)
                   for a, b in zip(first, changed, strict=True))  # fmt: skip
