"""Nodes of several domains: sizes stay, no image is lost, and the common mixture is the same for all."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift_datasets.partition.mixing import exchanged


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
