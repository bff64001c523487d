"""CITATION.cff has the paper of each method under the method's name, as the method's page has it."""

import re
from typing import Any

import pytest
import yaml
from support import ROOT

from fedshift_app.config import registry
from fedshift_core.extensions import OURS

CITED: list[dict[str, Any]] = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
NO_PAPER = "-"  # as venue
#: What a reference must have in CFF 1.2.0, and what else of it is used here.
NEEDED = {"type", "title", "authors"}
KNOWN = NEEDED | {
    "keywords", "journal", "collection-title", "year", "volume", "issue", "start", "end", "doi", "url", "notes",
}  # fmt: skip
LINK = re.compile(r"https://(?:arxiv\.org|doi\.org|openreview\.net)/[^)\s]+")


@pytest.mark.parametrize("name", [name for name in registry.METHODS if registry.METHODS.origin(name) == OURS])
def test_each_method_with_a_paper_has_one_reference(name: str) -> None:
    found = [one for one in CITED if name in one["keywords"]]
    venue = registry.get(name).venue
    assert len(found) == (venue != NO_PAPER)
    if found and not venue.startswith("arXiv"):
        assert str(found[0]["year"]) in venue


@pytest.mark.parametrize("cited", CITED, ids=lambda one: one["keywords"][0])
def test_a_reference_is_what_the_methods_page_says(cited: dict[str, Any]) -> None:
    page = " ".join((ROOT / "docs" / "methods" / f"{cited['keywords'][0]}.md").read_text().split("\n## ")[0].split())
    assert cited["title"] in page
    links = {f"https://doi.org/{cited['doi']}"} if "doi" in cited else {cited[key] for key in ("url",) if key in cited}
    assert links == set(LINK.findall(page))
    assert cited["authors"][0]["family-names"] in page


@pytest.mark.parametrize("cited", CITED, ids=lambda one: one["keywords"][0])
def test_a_reference_is_one_of_cff_1_2_0(cited: dict[str, Any]) -> None:
    assert cited.keys() >= NEEDED and cited.keys() <= KNOWN
    assert cited["type"] in ("article", "conference-paper")
    names = [str(author) for author in cited["authors"]]
    assert names and len(set(names)) == len(names)  # of one name twice a reader of the file would say that it is wrong
    assert all(
        author.keys() <= {"family-names", "given-names"} or author.keys() == {"name"} for author in cited["authors"]
    )
    assert set(cited["keywords"]) <= set(registry.METHODS)
