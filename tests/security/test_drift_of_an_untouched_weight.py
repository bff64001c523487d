"""What no node changes stays as it is in a secure sum, whatever nodes weigh and for however many rounds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedshift_core.secure.layout import Layout, Segment

N = 1000


@given(st.integers(2, 10**5), st.floats(1e-6, 2**20), st.integers(1, 2000))
def test_zeros_sum_to_zero(nodes: int, most: float, arrived: int) -> None:
    layout, number = Layout((Segment("w", (), most),), nodes), min(arrived, nodes)
    one = layout.vector({"w": np.array(0.0)})
    assert layout.values(np.array([int(one[0]) * number]).astype(np.uint32), number)["w"] == 0


def test_a_weight_that_a_thousand_nodes_leave_alone_does_not_move_in_a_hundred_rounds() -> None:
    """Of images by Pareto the largest node weighs hundreds of times the smallest."""
    images = np.clip(20 * (1 + np.random.default_rng(0).pareto(1.2, N)), 20, 5000)
    factors = images / images.max()
    layout, weight = Layout((Segment("w", (1,), 64.0),), N), np.float32(0.25)
    for _ in range(100):
        total = np.zeros(1, np.uint32)
        for factor in factors:
            total += layout.vector({"w": np.array([0.0]) * factor})
        weight = np.float32(weight + layout.values(total, N)["w"][0] / factors.sum())
    assert weight == np.float32(0.25)


def test_levels_are_even_and_leave_no_sum_a_wrap() -> None:
    for nodes in range(1, 3000):
        levels = Layout((), nodes).levels
        assert levels % 2 == 0 and levels * nodes < 2**32 <= (levels + 2) * nodes + nodes
