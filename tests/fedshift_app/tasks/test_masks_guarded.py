"""Masks under what guards a federation: sums that no one reads, and rules against lying nodes."""

import pytest
from support import InlineRun

SHORT = "train.epochs=1 train.precision=float32 allocation.share=0.1"


@pytest.mark.parametrize(
    "keys", ["federation.secure_sums=on federation.secure_sums_nodes=3", "aggregation.robust=median"]
)
def test_masks_are_learnt_by_secure_sums_and_robust_rules(keys: str, run_inline: InlineRun) -> None:
    run = run_inline("handwritten-masks", rounds=1, nodes=4, set=f"{SHORT} {keys}")
    assert run.rounds[0]["left_out"] == [] and len(run.results["segmentation"]["sites"]) == 4
