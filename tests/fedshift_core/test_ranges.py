"""Ranges of a search: what is one, what is none, and what lies in it."""

from typing import Any

import pytest

from fedshift_core.errors import ConfigError
from fedshift_core.ranges import read
from fedshift_core.registry import Method


@pytest.mark.parametrize(
    ("reason", "inside", "outside"),
    [
        ([0.1, 1], [0.1, 0.5, 1], [0.09, 1.01, True, "0.5", None]),
        ([0.001, 1.0, "log"], [0.001, 1.0], [0, -1]),
        ((1, 5, "whole"), [1, 3, 5], [0, 6, 2.5]),
        ({"values": ["none", "mlp", 1, True]}, ["mlp", 1, True], ["x", 1.0, False]),
    ],
)
def test_a_range_holds_what_is_in_it_and_is_reported_as_it_was_read(reason: Any, inside: Any, outside: Any) -> None:
    content = read(reason, "mu")
    assert all(content.holds(one) for one in (*inside, *content.ends()))
    assert not any(content.holds(one) for one in outside)
    assert read(content.as_yaml(), "mu") == content


@pytest.mark.parametrize(
    "reason",
    [
        0.1, "0.1", None, [1], [1, 1], [0, 1, "log"], [1, 2, "linear"], [1, 2, "log", "whole"], [0.5, 2, "whole"],
        [True, 2], [0, float("inf")], [float("nan"), 1], ["a", "b"], {"values": [1]}, {"values": [1, 1]},
        {"values": [[1], [2]]}, {"values": "ab"}, {"values": [1, 2], "log": True}, {"low": 1},
    ],
)  # fmt: skip
def test_what_is_no_range_is_refused_with_its_key(reason: Any) -> None:
    for call in (lambda: read(reason, "mu"), lambda: Method(name="mine", title="Mine", search={"mu": reason})):
        with pytest.raises(ConfigError, match=r"^mu: "):
            call()
