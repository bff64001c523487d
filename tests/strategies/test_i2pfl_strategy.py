"""I2PFL on the server: Eq. 3 to 5 against loops, and what happens to classes that come and go."""

from functools import partial

import numpy as np
import pytest
import yaml
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from support import after_rounds, new_strategy, update

from fedshift_strategies.methods.i2pfl import I2PFLStrategy, reweighted_prototypes

C, D = 3, 2


# --- Eq. 4 -----------------------------------------------------------------------------------------


def slow_reweighted(p: NDArray[np.float32], holds: NDArray[np.bool_], squared: bool) -> NDArray[np.float64]:
    g = np.zeros(p.shape[1:])
    for k in np.flatnonzero(holds.any(axis=0)):
        members = p[holds[:, k], k].astype(np.float64)
        distances = np.linalg.norm(members - members.mean(axis=0), axis=1) ** (1 + squared)
        g[k] = np.average(members, axis=0, weights=distances if len(members) > 1 else None)
    return g


@pytest.mark.parametrize("squared", [True, False])
def test_reweighting_against_loops(squared: bool) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        p = rng.normal(size=(5, 6, 4)).astype(np.float32)
        holds = rng.random(size=(5, 6)) < 0.6
        holds[:, 0], holds[:, 1], holds[0, 1] = False, False, True  # class 0: nobody; class 1: node 0 alone
        holds[:, 2] = [True, False, True, False, False]  # of two each weighs 1/2 (methods A5)
        p[~holds] = 1e6  # which is ignored
        g, held = reweighted_prototypes(p, holds, squared=squared)
        assert_allclose(g, slow_reweighted(p, holds, squared), rtol=1e-4, atol=1e-6)
        assert_allclose(g[2], (p[0, 2] + p[2, 2]) / 2, rtol=1e-5, atol=1e-6)
        assert held.tolist() == [bool(holds[:, k].any()) for k in range(6)]
        assert np.array_equal(g[1], p[0, 1])
        assert g.dtype == np.float32


# --- Eq. 4 -----------------------------------------------------------------------------------------


# --- rounds ----------------------------------------------------------------------------------------


strategy = partial(new_strategy, I2PFLStrategy)
ONES = [[1.0, 1.0]] * C
TWOS = [[2.0, 2.0]] * C
ALL = [1] * C


@pytest.mark.parametrize(
    ("params", "answer"),
    [
        ("ema: 0.9", 1.1),  # 0.9 * 1 + 0.1 * 2
        ("ema: 0.9, ema_weight_on: current", 1.9),  # 0.1 * 1 + 0.9 * 2
        ("ema: 0.9, use_ema: false", 2.0),
        ("", 1.01),  # 0.99 * 1 + 0.01 * 2
        ("ema: 0.9, inter_proto: average", 1.1),
        ("ema: 0.9, dist: l2", 1.1),
    ],
)
def test_second_round_is_mixed_with_the_first(params: str, answer: float) -> None:
    server = strategy(**yaml.safe_load(f"{{{params}}}"))
    assert after_rounds(server, [update(ONES, ALL)]) == {k: [1, 1] for k in range(C)}  # taken as it is
    first = server.knowledge["prototypes"]
    got = after_rounds(server, [update(TWOS, [1, 0, 1])])
    # A class that nobody has stays to the bit.
    assert got == {0: pytest.approx([answer] * D, rel=1e-6), 1: [1, 1], 2: pytest.approx([answer] * D, rel=1e-6)}
    assert first.tolist() == ONES
