"""What no node changes stays as it is in a secure sum, whatever nodes weigh and for however many rounds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedshift_core.secure.layout import Layout, Segment


@given(st.integers(2, 10**5), st.floats(1e-6, 2**20), st.integers(1, 2000))
def test_zeros_sum_to_zero(nodes: int, most: float, arrived: int) -> None:
    layout, number = Layout((Segment("w", (), most),), nodes), min(arrived, nodes)
    one = layout.vector({"w": np.array(0.0)})
    assert layout.values(np.array([int(one[0]) * number]).astype(np.uint32), number)["w"] == 0


def test_levels_are_even_and_leave_no_sum_a_wrap() -> None:
    for nodes in range(1, 3000):
        levels = Layout((), nodes).levels
        assert levels % 2 == 0 and levels * nodes < 2**32 <= (levels + 2) * nodes + nodes
