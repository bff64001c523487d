"""The pages of docs: the site, the headings of methods, the generated references."""

import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, load_benchmark

# --- The docs as a site: built without a network, with no link that leads nowhere ---


def test_it_is_built_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    env = os.environ | {"FEDSHIFT_BOARD_RUNS": "docs/results/digits-cnn"}  # of all runs: test_board.py
    built = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")} - {"index"}
    assert all((tmp_path / "site" / "methods" / page / "index.html").is_file() for page in pages)
    text = (tmp_path / "site" / "index.html").read_text()
    assert "fonts.googleapis.com" not in text and "FedShift" in text


# --- docs/methods: every page has the same headings in the same order ---


HEADINGS = ["Idea", "Equations", "What travels", "Deviations", "Results"]
PAGES = [page for page in sorted((ROOT / "docs" / "methods").glob("*.md")) if page.name != "index.md"]


def test_a_page_has_the_headings_of_all() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"^## (.*)$", text, re.M) == HEADINGS, page.stem
        parts = re.split(r"^##? .*$", text, flags=re.M)
        assert all(part.strip() for part in parts[1:]), f"{page.stem}: a heading without text"
        assert f"(../reference/methods.md#{page.stem})" in text


def test_each_name_of_code_on_a_page_of_a_method_or_the_architecture_is_there() -> None:
    named = re.compile(r"`(fedshift(?:_(?:app|clients|core|datasets|strategies))?(?:\.\w+)+)`")
    pages = [*PAGES, ROOT / "docs" / "architecture.md"]
    names = {(page.stem, name) for page in pages for name in named.findall(page.read_text(encoding="utf-8"))}
    names -= {("architecture", "fedshift.features")}  # a group of entry points
    assert len(names) > 100
    missing = []
    for page, name in sorted(names):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            missing.append(f"{page}: {name}")
    assert missing == []


# --- What a script makes of the code: the reference, and files that are committed ---


SCRIPT = load_benchmark("reference_pages")


@pytest.mark.parametrize("path", SCRIPT.FILES)
def test_a_file_is_up_to_date(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text == SCRIPT.FILES[path](), "run: python benchmarks/reference_pages.py"


def test_each_file_of_code_and_of_tests_that_a_page_names_is_there() -> None:
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    folders = "fedshift|fedshift_app|fedshift_core|strategies|clients|datasets|tests"
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"\btest_\w+\.py", text)) <= there, page.name
        for named in re.findall(rf"(?<![\w/.-])(?:{folders})/[\w/]+\.py", text):
            found = [(root / named).is_file() for root in (ROOT, ROOT / "tests")]  # a page may leave out tests/
            assert any(found) or "NAME" in named, f"{page.name}: {named}"
