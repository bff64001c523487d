"""Numbers in texts agree with the words after them."""

import ast
import re
from collections.abc import Iterator

import pytest
from support import ROOT

from fedshift_core.plural import plural

PACKAGES = ("fedshift", "fedshift_app", "strategies", "clients", "datasets", "fedshift_core")
#: Words that end in s and are no plural, after a number of something else.
OTHER = {"has", "was", "does", "makes", "sums", "needs", "this", "its", "is"}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (plural(0, "image"), "0 images"), (plural(1, "image"), "1 image"), (plural(2, "image"), "2 images"),
        (plural(1, "local epoch"), "1 local epoch"), (plural(3, "class", "classes"), "3 classes"),
        (plural(1, "file is", "files are"), "1 file is"), (plural(12345, "byte", form=","), "12,345 bytes"),
    ],
)  # fmt: skip
def test_one_is_singular(made: str, expected: str) -> None:
    assert made == expected


def lengths_with_plurals(source: str) -> Iterator[str]:
    """Yield each ``{len(...)} nouns`` of the f-strings of a file."""
    for node in ast.walk(ast.parse(source)) if "{len(" in source else ():
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and ast.unparse(value.value).startswith("len("):
                after = (
                    re.match(r" (?:[a-z]+ )?([a-z]{3,}s)\b", str(text.value))
                    if isinstance(text, ast.Constant)
                    else None
                )
                if after and after[1] not in OTHER and value.format_spec is None:
                    yield f"{ast.unparse(value.value)}{text.value!r}"


def test_a_length_is_written_with_plural() -> None:
    left = [
        f"{path.relative_to(ROOT)}: {found}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for found in lengths_with_plurals(path.read_text(encoding="utf-8"))
    ]
    assert left == []
