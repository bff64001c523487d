"""Names that people write: which spellings are one name, and which numbers are refused side by side."""

import unicodedata

import pytest
from refusals import refused

from fedshift_core import same_names


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Läsion", unicodedata.normalize("NFD", "Läsion")),
        ("Benign", "\tbenign\u00a0"),
        ("P1", "p1"),
        ("STRASSE", "straße"),
        ("left lower", "left\u3000lower"),
        ("benign", "\ufeffbenign"),
        ("benign", "be\u200bnign"),
        ("benign", "be\u00adnign"),
        ("benign", "benign\u200e"),
        ("benign", "benign\ufe0f"),
        ("x-ray", "x\u2011ray"),
        ("\u00b5m", "\u03bcm"),
        ("\u212bngström", "ångström"),
        ("fibroma", "\ufb01broma"),
    ],
)
def test_spellings_of_one_name(first: str, second: str) -> None:
    assert same_names.same(first, second) and same_names.twice(("other", first, second)) == (first, second)
    assert same_names.place(second, ("other", first)) == 1


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("left lower", "leftlower"), ("x_y", "x-y"), ("0", "0.0")])
def test_different_names(first: str, second: str) -> None:
    assert not same_names.same(first, second) and same_names.twice((first, second)) is None


def test_the_number_that_a_name_writes() -> None:
    written = ["0", "-0", "01", "1.", "+1", "1,50", "-2.0", "1e3", "x1", "", "1.2.3", "٣"]
    assert [same_names.number(text) for text in written] == ["0", "0", "1", "1", "1", "1.5", "-2", *[None] * 4, "3"]


def test_a_number_in_two_spellings_is_refused_with_both() -> None:
    assert same_names.clash(["1", "1 ", "x", "2"]) is None  # one name
    assert same_names.clash(["1", "x", "01"]) == ("1", "01")
    with refused(ValueError, "labels", "'0' (line 2)", "'0.0' (line 5)"):
        same_names.check_numbers(["0", "0.0"], "labels", {"0": "line 2", "0.0": "line 5"})
