"""Values as JSON that TOML and YAML read alike."""

import json
import tomllib
from typing import Any

import pytest
import yaml

from fedshift_core.json_text import text_of

UNUSUAL = "".join(map(chr, (0, 9, 10, 27, 127, 0x85, 0x9F, 0x2028, 0x2029, 0xFFFE, 0xFFFF)))


@pytest.mark.parametrize("value", ["a", "😀 runs", 'a"b\\c', "ä中", UNUSUAL, True, 3, -0.5, ["😀", "b"]])
def test_three_readers_agree(value: Any) -> None:
    text = text_of(value)
    assert json.loads(text) == value
    assert yaml.safe_load(text) == value
    assert tomllib.loads(f"key = {text}") == {"key": value}


def test_a_byte_that_is_not_utf8_can_be_written() -> None:
    assert text_of("a\udcff").encode() == b'"a\\udcff"'
