"""I2PFL's recovered form of Eq. 9 does not train with the paper's lambda1; its class set alone does.

docs/methods/i2pfl.md gives the norms of the gradients, ``tests/clients/test_i2pfl_client.py`` compares them.
"""

import pytest
from support import InlineRun

CLASS_SET = "method.augproto_scope=class_set"
RECOVERED = f"{CLASS_SET} method.apa_level=class_mean method.apa_reduction=class_sum"

pytestmark = pytest.mark.long


def test_the_recovered_form_diverges_in_the_first_round(run_inline: InlineRun) -> None:
    run = run_inline(method="i2pfl", nodes=4, rounds=2, set=f"train.precision=float32 {RECOVERED}")
    assert run.rounds[0]["left_out"]
    assert all("not finite" in line or "allowed are numbers" in line for line in run.rounds[0]["left_out"])
    for line in run.rounds:
        assert set(line["accuracy"].values()) == {10.0}  # of ten classes, each as often in a test set


def test_the_class_set_alone_learns(run_inline: InlineRun) -> None:
    run = run_inline(method="i2pfl", nodes=4, rounds=4, set=f"train.precision=float32 {CLASS_SET}")
    assert all("left_out" not in line or not line["left_out"] for line in run.rounds)
    assert sum(run.rounds[-1]["accuracy"].values()) / 4 > 40
