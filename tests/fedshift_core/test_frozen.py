"""Mappings that are keys: equal ones have equal hashes, and nothing changes them."""

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift_app.config.resolving import resolve
from fedshift_app.config.validating import from_json
from fedshift_core.frozen import FrozenDict, frozen

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_equal_content_has_an_equal_hash_whatever_the_order(content: dict[str, Any]) -> None:
    one, other = FrozenDict(content), FrozenDict(dict(reversed(content.items())))
    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.deepcopy(one) is one


def test_lists_become_tuples_however_deep() -> None:
    assert frozen({"a": [1, {"b": [2]}]}) == {"a": (1, {"b": (2,)})}


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(a=2), lambda d: d.pop("a"), lambda d: d.__setitem__("a", 2), lambda d: d.clear(),
        lambda d: d.setdefault("b", 1), lambda d: d.__delitem__("a"), lambda d: d.__ior__({"a": 2}),
    ],
)  # fmt: skip
def test_it_cannot_be_changed(change: Any) -> None:
    content = FrozenDict({"a": 1})
    with pytest.raises(TypeError, match="cannot change"):
        change(content)
    assert content == {"a": 1}


@pytest.mark.parametrize("method", ["fedavg", "f2dc", "fedicon", "fedcode"])
def test_a_configuration_is_its_own_key(method: str) -> None:
    config = resolve({"method": method, "set": "allocation.counts='{scan: 1, texture: 2}'"})
    same = from_json(config.model_dump_json())
    assert config == same
    assert hash(config) == hash(same)
    other = resolve({"method": method, "set": "allocation.counts='{scan: 2, texture: 2}'"})
    assert config != other
    assert len({config, same, other}) == 2
