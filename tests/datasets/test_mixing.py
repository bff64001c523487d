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


@pytest.mark.parametrize("mixing", [0.0, 0.3, 1.0])
def test_nodes_keep_their_sizes_and_together_their_images(mixing: float) -> None:
    homes, held = nodes()
    after = exchanged(homes, held, mixing, "train", 3)
    assert [sum(map(len, parts.values())) for parts in after] == [len(images) for images in held]
    for domain, sizes in SIZES.items():
        now = np.concatenate([parts[domain] for parts in after if domain in parts])
        assert np.array_equal(np.sort(now), np.arange(sum(sizes)))
    for again, purpose, seed in ((True, "train", 3), (not mixing, "train", 2), (not mixing, "validation", 3)):
        others = exchanged(homes, held, mixing, purpose, seed)
        assert again == all(np.array_equal(a.get(d), b.get(d)) for a, b in zip(after, others, strict=True) for d in a)


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
