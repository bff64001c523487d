"""CITATION.cff, which is made of the methods' entries, has what its format allows, and agrees with pages."""

from typing import Any

import yaml
from support import ROOT

from fedshift_app.config import registry
from fedshift_core.extensions import OURS

CITED: list[dict[str, Any]] = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
NO_PAPER = "-"  # as venue


def test_each_method_with_a_paper_has_one_reference() -> None:
    for name in (name for name in registry.METHODS if registry.METHODS.origin(name) == OURS):
        values = [one for one in CITED if name in one["keywords"]]
        venue = registry.get(name).venue
        assert len(values) == (venue != NO_PAPER), name
        if values and not venue.startswith("arXiv"):
            assert str(values[0]["year"]) in venue, name
