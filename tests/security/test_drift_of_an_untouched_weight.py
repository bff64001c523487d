"""What no node changes stays as it is in a secure sum, whatever nodes weigh and for however many rounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift_core.secure.layout import Layout, Segment

N = 1000


@given(st.integers(2, 10**5), st.floats(1e-6, 2**20), st.integers(1, 2000))
def test_zeros_sum_to_zero(nodes: int, most: float, arrived: int) -> None:
    layout = Layout((Segment("w", (), most),), nodes)
    one = layout.vector({"w": np.array(0.0)})
    total = np.array([int(one[0]) * min(arrived, nodes)]).astype(np.uint32)
    assert layout.values(total, min(arrived, nodes))["w"] == 0


@pytest.mark.parametrize("spread", [0.0, 1.2])
def test_a_weight_that_a_thousand_nodes_leave_alone_does_not_move_in_a_hundred_rounds(spread: float) -> None:
    """Of images by Pareto the largest node weighs hundreds of times the smallest."""
    rng = np.random.default_rng(0)
    images = np.clip(20 * (1 + rng.pareto(spread, N)), 20, 5000) if spread else np.full(N, 100.0)
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
