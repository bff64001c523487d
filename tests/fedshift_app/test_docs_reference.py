"""docs/reference: each page is what its script makes of the code."""

import pytest
from support import ROOT, load_benchmark

SCRIPT = load_benchmark("reference_pages")


@pytest.mark.parametrize("name", SCRIPT.PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    page = (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert page == SCRIPT.PAGES[name](), f"run: python benchmarks/reference_pages.py {name}"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("methods", "| `method.mu` | `0.01` | at least 0 |"),
        ("commands", "| `--html PATH` |  | A page to write. |"),
        ("commands", "## fedshift credentials node"),
        ("wire", "| `NUM_EXAMPLES` | `num-examples` |"),
        ("wire", "| `scaffold` | delta-c (P) |"),
    ],
)
def test_rows_by_hand(name: str, row: str) -> None:
    assert row in (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
