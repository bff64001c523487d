"""CITATION.cff, which is made of the methods' entries, has what its format allows, and agrees with pages."""

import ast
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from support import ROOT

from fedshift_app.config import registry
from fedshift_app.flower.sources import NAMES
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


# --- the page of the architecture ---------------------------------------------------------------------

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
#: Each package by the folder that the page draws.
PACKAGES = {
    **{name: ROOT / name for name in ("fedshift", "fedshift_app", "fedshift_core")},
    **{name: ROOT / name / f"fedshift_{name}" for name in ("strategies", "clients", "datasets")},
}


def drawn() -> dict[str, set[str]]:
    """Return the rooms of each folder that the page draws."""
    rooms: dict[str, set[str]] = {}
    for indent, name in re.findall(r"^( {4}| {6})(\w+)/ ", PAGE, re.M):
        if len(indent) == 4:
            rooms[name] = set()
        else:
            rooms[[*rooms][-1]].add(name)
    return rooms


def imported(package: Path) -> set[str]:
    """Return the other packages of ours that the files of one import."""
    names: set[str] = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
            names |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
    ours = {folder.name for folder in PACKAGES.values()} - {package.name}
    return {name.split(".")[0] for name in names} & ours


def test_the_house_is_drawn_as_it_is() -> None:
    rooms = drawn()
    assert rooms.pop("conf") == set()
    assert rooms == {
        name: {path.parent.name for path in folder.glob("*/__init__.py")} for name, folder in PACKAGES.items()
    }


def test_the_imports_between_packages_are_those_of_the_table() -> None:
    table = PAGE.partition("| package | imports of ours |\n")[2].partition("\n\n")[0]
    stated: dict[str, set[str]] = {}
    for row in table.splitlines()[1:]:
        packages, below = (set(re.findall(r"`(\w+)`", cell)) for cell in row.strip("|").split("|"))
        stated |= dict.fromkeys(packages, {*stated} if "all of these" in row else below)
    assert stated == {folder.name: imported(folder) for folder in PACKAGES.values()}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(fedshift\w*(?:\.\w+)+)`", PAGE))))
def test_each_name_is_there(name: str) -> None:
    if name != "fedshift.features":  # a group of entry points
        resolve_name(name)


def test_the_page_for_flower_has_all_patches_and_counts_the_names() -> None:
    page = (ROOT / "docs" / "upstream.md").read_text(encoding="utf-8")
    patches = {path.name for path in (ROOT / "docs" / "upstream").glob("*.patch")}
    assert set(re.findall(r"\(upstream/(.*?)\)", page)) == patches
    assert f"the {len(NAMES)} names" in page
