"""Values as JSON that TOML and YAML read alike."""

import json
import tomllib
from typing import Any

import pytest
import yaml

from fedshift_core.cells import harmless, harmless_row
from fedshift_core.json_text import text_of
from fedshift_core.spelling import meant

UNUSUAL = "".join(map(chr, (0, 9, 10, 27, 127, 0x85, 0x9F, 0x2028, 0x2029, 0xFFFE, 0xFFFF)))


@pytest.mark.parametrize("value", ["a", "😀 runs", 'a"b\\c', "ä中", UNUSUAL, True, 3, -0.5, ["😀", "b"]])
def test_three_readers_agree(value: Any) -> None:
    text = text_of(value)
    assert json.loads(text) == value
    assert yaml.safe_load(text) == value
    assert tomllib.loads(f"key = {text}") == {"key": value}


def test_a_byte_that_is_not_utf8_can_be_written() -> None:
    assert text_of("a\udcff").encode() == b'"a\\udcff"'


# --- cells of tables, and names that were meant -------------------------------------------------------

# --- A cell that a spreadsheet would run is made a text; numbers stay numbers ---


FORMULAS = (
    "=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\uff1d1", "-", "-a", "-1_0",
)  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_made_a_text(text: str) -> None:
    assert harmless(text) == f"'{text}"


@pytest.mark.parametrize("cell", ["cat", "a=b", "", None, -1.5, -3, "-1.5", "+3", "-1e-3", "-inf", "a-b", "'x", "1-2"])
def test_all_else_stays(cell: Any) -> None:
    assert harmless(cell) is cell
    assert harmless_row([cell, "=x"]) == [cell, "'=x"]


# --- What is offered for a word that is unknown ---


METHODS = ("fedavg", "fedprox", "fedproto", "i2pfl", "moon")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("fedvag", "; did you mean fedavg?"),
        ("FedAvg", "; did you mean fedavg?"),
        ("fedprot", "; did you mean fedproto or fedprox?"),
        ("zzz", ""),
        (None, ""),
        (["moon"], ""),
        ("moon" * 100_000, ""),
    ],
)
def test_words_that_are_like_it_are_offered(word: object, expected: str) -> None:
    assert meant(word, METHODS) == expected
