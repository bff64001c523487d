"""What the authors' own files cut gradients at is part of their method, and what FDSE needs to train at all."""

import math

import pytest
from support import InlineRun

from fedshift_app.config.resolving import resolve


@pytest.mark.parametrize(("method", "norm"), [("fdse", 10.0), ("feddyn", 10.0), ("fedrcl", 10.0), ("fedgh", 50.0)])
def test_gradients_are_cut_where_the_authors_cut_them(method: str, norm: float) -> None:
    assert resolve({"experiment": "handwritten", "method": method}).train.clip == norm
    assert resolve({"experiment": "handwritten", "method": method, "set": "train.clip=null"}).train.clip is None
    assert resolve({"experiment": "handwritten", "method": "fedavg"}).train.clip is None


def test_fdse_trains_with_its_own_defaults_and_one_local_epoch(run_inline: InlineRun) -> None:
    """Statistics of so few steps make its term thousands large in round 2: uncut, both nodes diverge."""
    run = run_inline(
        method="fdse", nodes=2, rounds=2, seed=1,
        set="train.epochs=1 allocation.share=0.3 allocation.held_out=[street,sketch]",
    )  # fmt: skip
    assert [line["nodes"] for line in run.rounds] == [[0, 1], [0, 1]]
    assert all(math.isfinite(value) for line in run.rounds for value in line["losses"].values())
    assert run.rounds[-1]["left_out"] == []
