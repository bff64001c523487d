"""Wilson's interval: that of SciPy, between 0 and 1, around the proportion."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedshift_core.intervals import wilson


@given(st.integers(1, 3000), st.data())
def test_it_is_that_of_scipy_and_holds_the_proportion(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    value, low, high = wilson(k, n)
    known = binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((known.low, known.high), abs=1e-9)
    assert 0 <= low <= value <= high <= 1 and value == k / n


def test_arrays_are_taken_element_by_element_and_more_images_narrow_it() -> None:
    k, n = np.array([[5.0, 50.0], [500.0, 0.0]]), np.array([[10.0, 100.0], [1000.0, 7.0]])
    made = wilson(k, n)
    assert made.shape == (2, 2, 3)
    assert all((made[i, j] == wilson(k[i, j], n[i, j])).all() for i in range(2) for j in range(2))
    widths = (made[..., 2] - made[..., 1]).ravel()
    assert widths[0] > widths[1] > widths[2]
