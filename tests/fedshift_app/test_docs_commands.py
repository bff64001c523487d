"""Each command that README and docs print is one that is taken, with the keys and values that it names."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from doc_commands import checked, printed, typed
from support import ROOT, load_benchmark

from fedshift_core.errors import ConfigError

REFERENCE = load_benchmark("reference_pages").PAGES  # made by `make docs`
GUIDES = [ROOT / f"{name}.md" for name in ("CONTRIBUTING", "AGENTS", "SECURITY", "CODE_OF_CONDUCT")]
PAGES = [ROOT / "README.md", *GUIDES, *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_taken(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # it would be tried again and again
    for command in printed(page):
        try:
            checked(command)
        except (ConfigError, click.ClickException) as error:
            pytest.fail(f"fedshift {command}: {error}")


def test_what_is_not_taken_would_be_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Do `fedshift run handwritten method=fedvag`, then\n\n"
        "    fedshift run handwritten train.rl=1 \\\n      rounds=2   # no such key\n\n"
        "```bash\nfedshift compare runs --scoer clients | head\nfedshift rnu && fedshift save RUN --fromat onnx\n```\n"
    )
    commands = list(printed(page))
    assert commands == [
        "compare runs --scoer clients", "rnu", "save RUN --fromat onnx", "run handwritten train.rl=1 rounds=2",
        "run handwritten method=fedvag",
    ]  # fmt: skip
    for command in commands:
        with pytest.raises((ConfigError, click.ClickException, AssertionError)):
            checked(command)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file and the heading of each link within the project."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


@functools.cache
def headings(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    result: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *$", page.read_text(encoding="utf-8"), re.MULTILINE):
        result.add(re.sub(r"[\s]", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()))
    return result


def test_the_links_of_a_page_lead_to_a_heading() -> None:
    """The site is checked by mkdocs where it is installed; README is no page of it."""
    made = {ROOT / "docs" / "results" / "board.html"}  # by `make docs`
    made |= {ROOT / "docs" / "reference" / f"{name}.md" for name in REFERENCE}
    for page in PAGES:
        for target, anchor in links(page):
            if target in made and page != PAGES[0]:  # README's are followed where nothing is made
                continue
            assert target.exists(), f"{page.name}: {target}"
            if anchor and target.suffix == ".md":
                assert anchor in headings(target), f"{page.name}: {target.name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_key_with_brackets_is_quoted(page: Path) -> None:
    """A shell takes ``[...]`` for names of files: zsh ends with ``no matches found``."""
    bare = [line for line in typed(page) if "=[" in re.sub(r"'[^']*'|\"[^\"]*\"", "", line.partition(" #")[0])]
    assert bare == []
