"""Whole numbers of a secure sum: the bound on rounding, against a slow version in exact fractions."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from fedshift_core.errors import FedShiftError
from fedshift_core.limits import BLOCK
from fedshift_core.secure import layout as secure
from fedshift_core.secure.layout import Layout, Segment, layout_of, of_powers, row_weights

reals = st.floats(-1, 1, allow_nan=False)


@settings(max_examples=60)
@given(st.integers(2, 1000), st.floats(1e-3, 2**20), st.lists(reals, min_size=1, max_size=12))
def test_a_sum_is_off_by_no_more_than_the_bound_says(nodes: int, most: float, shares: list[float]) -> None:
    layout = Layout((Segment("x", (), most),), nodes)
    values = [share * most for share in shares[:nodes]]
    total = np.zeros(1, np.uint32)
    for value in values:
        total += layout.vector({"x": np.array(value)})
    exact = sum(map(Fraction, values))
    found = float(layout.values(total, len(values))["x"])
    bound = len(values) * Fraction(most) / layout.levels * (1 + Fraction(1, 2**18))
    assert abs(Fraction(found) - exact) <= bound


def test_segments_longer_than_a_block_keep_their_order() -> None:
    size = BLOCK // 8 + 5
    values = np.linspace(-1, 1, size)
    layout = Layout((Segment("a", (3,), 0.0), Segment("x", (size,), 1.0)), 2)
    sums = layout.values(layout.vector({"a": np.arange(3), "x": values}), 1)
    assert sums["a"].tolist() == [0, 1, 2]
    assert np.abs(sums["x"] - values).max() <= layout.error(1.0) * 1.00001


@pytest.mark.parametrize("value", [1.5, -1.5, np.nan, np.inf])
def test_a_number_out_of_range_is_refused_with_its_name(value: float) -> None:
    layout = Layout((Segment("arrays/w", (2,), 1.0),), 3)
    with refused(FedShiftError, "arrays/w", "federation.secure_sums_range"):
        layout.vector({"arrays/w": np.array([0.0, value])})
    with refused(FedShiftError, "knowledge/counts"):
        Layout((Segment("knowledge/counts", (1,), 0.0),), 3).vector({"knowledge/counts": np.array([-1])})


def test_the_layout_has_weights_then_contributions_then_losses() -> None:
    weights = {"w": np.zeros((2, 3), np.float32), "n": np.zeros((), np.int64)}
    layout = layout_of(weights, {"prototypes": (4, 2), "counts": (4,)}, ["loss"], 64.0, 5)
    assert [(segment.name, segment.most) for segment in layout.segments] == [
        ("arrays/w", 64.0), ("arrays/n", 2.0**20), ("knowledge/prototypes", 64.0), ("knowledge/counts", 0.0),
        ("loss/loss", 64.0), ("reports/loss", 1.0),
    ]  # fmt: skip
    assert layout.size == 6 + 1 + 8 + 4 + 2


def test_rows_are_multiplied_as_the_kind_says() -> None:
    counts = np.array([0, 2, 8])
    by_images = row_weights("images", counts, 16, 2)
    assert np.asarray(by_images).tolist() == [[0.0], [0.125], [0.5]]
    assert np.asarray(row_weights("nodes", counts, 16, 1)).tolist() == [0, 1, 1]
    assert row_weights("each", counts, 16, 2) == row_weights("total", counts, 16, 2) == 1.0


def test_kinds_of_sums_travel_as_words() -> None:
    sums: dict[str, secure.Sum] = {"prototypes": "images", "a=b": "total"}
    assert secure.read(secure.written(sums)) == sums
    for entry in ("prototypes", "prototypes=all", "=each"):
        with refused(FedShiftError, "NAME=KIND"):
            secure.read([entry])


@pytest.mark.parametrize(("most", "used"), [(1e-6, 64.0), (64.0, 64.0), (100.0, 100.0)])
def test_a_small_range_of_weights_leaves_means_their_room(most: float, used: float) -> None:
    layout = of_powers({"sum/a": 2, "squares/a": 2}, {"sum/a": 1, "squares/a": 2}, most, 5)
    assert [segment.most for segment in layout.segments] == [used, used**2] and layout.size == 4
    values = {"sum/a": np.array([-3.0, used]), "squares/a": np.array([9.5, used**2])}
    back = layout.values(layout.vector(values), 1)
    for segment in layout.segments:
        assert np.abs(back[segment.name] - values[segment.name]).max() <= layout.error(segment.most)


# --- whole numbers ----------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(2, 3000), st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=6), st.integers(0, 2**20))
def test_whole_numbers_are_summed_exactly_whatever_their_signs(nodes: int, values: list[int], step: int) -> None:
    layout = layout_of({}, {"counts": (1,), "gram": (len(values),)}, [], 64.0, nodes, ["gram"])
    most, total, exact = layout.most_whole, np.zeros(layout.size, np.uint32), [0] * len(values)
    for i in range(min(nodes, 40)):
        own = [max(-most, min(most, value - i * step)) for value in values]
        total += layout.vector({"knowledge/counts": np.array([i]), "knowledge/gram": np.array(own)})
        exact = [a + b for a, b in zip(exact, own, strict=True)]
    sums = layout.values(total, min(nodes, 40))
    assert sums["knowledge/gram"].tolist() == exact
    assert sums["knowledge/gram"].dtype == np.int64
    assert sums["knowledge/counts"].tolist() == [sum(range(min(nodes, 40)))]


@pytest.mark.parametrize("nodes", [2, 3, 10, 1000, 10**5])
def test_the_largest_whole_numbers_of_all_nodes_do_not_wrap(nodes: int) -> None:
    layout = Layout((Segment("gram", (2,), 0.0, digits=True),), nodes)
    most = layout.most_whole
    vector = layout.vector({"gram": np.array([most, -most])}).astype(np.uint64)
    assert vector.max() <= layout.levels and int(vector.max()) * nodes < 2**32
    total = (vector * np.uint64(nodes)).astype(np.uint32)
    assert layout.values(total, nodes)["gram"].tolist() == [nodes * most, -nodes * most]
    for out in (most + 1, -most - 1):
        with refused(FedShiftError, "gram"):
            layout.vector({"gram": np.array([0, out])})
