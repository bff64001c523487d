"""Numbers of images by class of all nodes: sums by hand, and a node that announces too many."""

import pytest
from support import node

from fedshift_app.features.class_balance.server import totals


@pytest.mark.parametrize(
    ("counts", "most", "wanted"),
    [([(3, 0, 5), (1, 2, 0)], 100.0, [4, 2, 5]), ([(10, 0), (0, 10), (1000, 0)], 5.0, [60, 10])],
)
def test_a_node_that_announces_too_many_counts_as_far_as_it_weighs(
    counts: list[tuple[int, ...]], most: float, wanted: list[float]
) -> None:
    assert totals([node(0, counts=each) for each in counts], most) == pytest.approx(wanted)
