"""docs/methods: every page has the same headings in the same order."""

import re
from pathlib import Path

import pytest
from support import ROOT

HEADINGS = [
    "Idea", "What travels", "Equations", "Parameters", "Choices", "Comparison with the authors' code", "Results",
    "Experiments",
]  # fmt: skip
PAGES = [page for page in sorted((ROOT / "docs" / "methods").glob("*.md")) if page.name != "index.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_headings_of_all(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.M) == HEADINGS
    parts = re.split(r"^##? .*$", text, flags=re.M)
    assert all(part.strip() for part in parts[1:]), "a heading without text"
    assert f"(../reference/methods.md#{page.stem})" in text
