"""CITATION.cff, which is made of the methods' entries, has what its format allows, and agrees with pages."""

from typing import Any

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


def test_each_method_with_a_paper_has_one_reference() -> None:
    for name in (name for name in registry.METHODS if registry.METHODS.origin(name) == OURS):
        values = [one for one in CITED if name in one["keywords"]]
        venue = registry.get(name).venue
        assert len(values) == (venue != NO_PAPER), name
        if values and not venue.startswith("arXiv"):
            assert str(values[0]["year"]) in venue, name


def test_a_reference_is_one_of_cff_1_2_0() -> None:
    for cited in CITED:
        assert cited.keys() >= NEEDED and cited.keys() <= KNOWN, cited
        assert cited["type"] in ("article", "conference-paper"), cited
        names = [str(author) for author in cited["authors"]]
        assert names and len(set(names)) == len(names), cited  # a reader of the file refuses one name twice
        kinds = [author.keys() for author in cited["authors"]]
        assert all(kind <= {"family-names", "given-names"} or kind == {"name"} for kind in kinds), cited
        assert set(cited["keywords"]) <= set(registry.METHODS), cited
