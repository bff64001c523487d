"""A server has nodes fail with a range of its choice, to read their numbers in the errors."""

import re
from typing import Any

import numpy as np
import pytest
from support import InlineRun, listening, refusal_of

from fedshift_core.errors import FederationError, FedShiftError
from fedshift_core.secure.layout import Layout, Segment


def test_nodes_that_fail_name_the_record_and_the_range_alone(run_inline: InlineRun) -> None:
    said: list[str] = []

    def note(message: Any, reply: Any) -> Any:
        said.extend([reply.error.reason] if reply.has_error() else [])
        return reply

    given = "train.epochs=1 allocation.share=0.05 train.precision=float32 federation.secure_sums=on"
    with pytest.raises(FederationError):
        run_inline(f"rounds=1 {given} federation.secure_sums_range=1e-6", grid=listening(note))
    assert len(said) == 4 and len({*said}) == 1  # whatever their numbers are
    assert re.findall(r"\d\S*\d", said[0].partition("arrays/")[2].partition(" ")[2]) == ["1e-06", "1e-06"]


@pytest.mark.parametrize("most", [0.0, 0.5])
def test_no_number_of_a_node_is_in_the_text(most: float) -> None:
    layout = Layout((Segment("x", (2,), most),), 3)
    values = (1.5, 7.25, 1e30, np.nan)
    assert len({refusal_of(FedShiftError, layout.vector, {"x": np.array([0.0, -value])}) for value in values}) == 1
