"""A cell that a spreadsheet would run is made a text; numbers stay numbers."""

from typing import Any

import pytest

from fedshift_core.cells import harmless, harmless_row

FORMULAS = (
    "=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\uff1d1", "-", "-a", "-1_0",
)  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_made_a_text(text: str) -> None:
    assert harmless(text) == f"'{text}"


@pytest.mark.parametrize("cell", ["cat", "a=b", "", None, -1.5, -3, "-1.5", "+3", "-1e-3", "-inf", "a-b", "'x", "1-2"])
def test_all_else_stays(cell: Any) -> None:
    assert harmless(cell) is cell
    assert harmless_row([cell, "=x"]) == [cell, "'=x"]
