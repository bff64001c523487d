"""FedALA's mixture and the step of its weights against slow versions."""

import numpy as np
import pytest
from support import as64, drawn

from fedshift_clients.methods import fedala as terms

SHAPE = (3, 4)


@pytest.mark.parametrize("eta", [0.1, 1.0, 5.0])
def test_mixture_and_step_against_numpy(eta: float) -> None:
    own, received, slope = drawn(1, *SHAPE), drawn(2, *SHAPE), drawn(3, *SHAPE)
    weights = drawn(4, *SHAPE).sigmoid()
    mixed, learned = terms.mixed(own, received, weights), terms.learned(weights, slope, own, received, eta)
    hit = set()
    for place in np.ndindex(*SHAPE):
        w, g, at, d = (float(as64(t)[place]) for t in (own, received, weights, slope))
        assert float(mixed[place]) == pytest.approx(at * g + (1 - at) * w, rel=1e-5, abs=1e-6)
        step = at - eta * d * (g - w)
        assert float(learned[place]) == pytest.approx(min(max(step, 0.0), 1.0), rel=1e-5, abs=1e-6)
        hit.add((step < 0) - (step > 1))
    assert eta < 1 or hit == {-1, 0, 1}  # both ends and what lies between
