"""A server has nodes fail with a range of its choice, to read their numbers in the errors."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import InlineRun, ListeningGrid, refusal_of

from fedshift_core.errors import FederationError, FedShiftError
from fedshift_core.secure.layout import Layout, Segment


def test_nodes_that_fail_name_the_record_and_the_range_alone(run_inline: InlineRun) -> None:
    said: list[str] = []

    class Grid(ListeningGrid):
        def pass_on(self, message, reply):  # type: ignore[no-untyped-def]
            if reply.has_error():
                said.append(reply.error.reason)
            return reply

    given = "train.epochs=1 allocation.share=0.05 train.precision=float32 federation.secure_sums=on"
    with pytest.raises(FederationError):
        run_inline(rounds=1, grid=Grid, set=f"{given} federation.secure_sums_range=1e-6")
    assert len(said) == 4 and len({*said}) == 1  # whatever their numbers are
    assert re.fullmatch(
        r"secure sums: arrays/[a-z.\d]+ holds a number out of range, allowed is -1e-06 to 1e-06 "
        r"\(federation.secure_sums_range; training diverged\?\)", said[0]
    )  # fmt: skip


@given(st.floats(1, 1e30) | st.just(float("nan")), st.booleans())
def test_no_number_of_a_node_is_in_the_text(value: float, counted: bool) -> None:
    layout = Layout((Segment("x", (2,), 0.0 if counted else 0.5),), 3)
    texts = {refusal_of(FedShiftError, layout.vector, {"x": np.array([0.0, -number])}) for number in (value, 7.25)}
    assert len(texts) == 1
