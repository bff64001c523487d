"""Mappings that are keys: equal ones have equal hashes, and nothing changes them."""

import copy
import pickle

import pytest

from fedshift_app.config.resolving import resolve
from fedshift_app.config.validating import from_json
from fedshift_core.frozen import FrozenDict, frozen


def test_equal_content_has_an_equal_hash_whatever_the_order() -> None:
    content = {"a": [1, {"b": [2.5, None]}], "c": {"d": True, "e": "x"}}
    one, other = FrozenDict(content), FrozenDict(dict(reversed(content.items())))
    assert one == other == pickle.loads(pickle.dumps(one)) and hash(one) == hash(other)
    assert copy.deepcopy(one) is one
    assert frozen(content)["a"] == (1, {"b": (2.5, None)})  # lists become tuples however deep


@pytest.mark.parametrize(
    "change",
    ["update(a=2)", "pop('a')", "__setitem__('a', 2)", "clear()", "setdefault('b', 1)", "__delitem__('a')",
     "__ior__({'a': 2})"],
)  # fmt: skip
def test_it_cannot_be_changed(change: str) -> None:
    content = FrozenDict({"a": 1})
    with pytest.raises(TypeError, match="cannot change"):
        eval(f"content.{change}")
    assert content == {"a": 1}


def test_a_configuration_is_its_own_key() -> None:
    config, other = (
        resolve({"method": "f2dc", "set": f"allocation.counts='{{scan: {number}, texture: 2}}'"}) for number in (1, 2)
    )
    assert len({config, from_json(config.model_dump_json()), other}) == 2 and config != other
