"""Means and mean squares in units of the shared weights' statistics."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedshift_core.moments import plain, power_of, standard

VALUES = arrays(np.float64, (50, 3), elements=st.floats(-50, 50))
OF_CHANNELS = arrays(np.float32, 3, elements=st.floats(-20, 20, width=32))


@given(VALUES, OF_CHANNELS, OF_CHANNELS)
@settings(max_examples=50)
def test_they_are_the_moments_of_the_standardised_values_and_come_back(x: object, mu: object, v: object) -> None:
    values, centre, variance = np.asarray(x), np.asarray(mu), np.asarray(v)
    weights = {"n.running_mean": centre, "n.running_var": variance}  # a negative variance is no unit
    means = {"sum/n": values.mean(axis=0), "squares/n": np.square(values).mean(axis=0)}
    converted = standard(means, ["n"], weights)
    z = (values - centre.astype(float)) / np.sqrt(np.maximum(variance.astype(float), 1e-5))
    np.testing.assert_allclose(converted["sum/n"], z.mean(axis=0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(converted["squares/n"], (z**2).mean(axis=0), rtol=1e-9, atol=1e-6)
    back = plain(converted, ["n"], weights)
    assert back.keys() == means.keys() and [power_of(name) for name in back] == [1, 2]
    for name, array in means.items():
        np.testing.assert_allclose(back[name], array, rtol=1e-9, atol=1e-9)
