"""docs/guide/own-method.md shows the files of tests/example_plugin as they are."""

import re

from support import ROOT

PAGE = ROOT / "docs" / "guide" / "own-method.md"
PACKAGE = ROOT / "tests" / "example_plugin"


def blocks() -> dict[str, str]:
    """Return the page's files by path: each block names its own in its first line."""
    result = re.findall(r"```(?:python|yaml|toml)\n# (\S+)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return dict(result)


def test_the_page_shows_the_package() -> None:
    shown = blocks()
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.suffix in (".py", ".yaml", ".toml")}
    assert set(shown) == files - {"fedshift_example/__init__.py"}
    for path, text in shown.items():
        assert text == (PACKAGE / path).read_text(), f"{path} is not what the page shows"
