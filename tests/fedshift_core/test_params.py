"""A class knows its parameters from its type argument, or says them itself."""

import copy
import pickle
from typing import Any, TypeVar

import pytest

from fedshift_app.config.resolving import resolve
from fedshift_app.config.validating import from_json
from fedshift_clients.base import DomainClient
from fedshift_core.errors import ConfigError
from fedshift_core.frozen import FrozenDict, frozen
from fedshift_core.params import Parametrised, Params
from fedshift_core.ranges import read
from fedshift_core.registry import Method
from fedshift_strategies.base import DomainStrategy


class Own(Params):
    mu: float = 0.5


class Longer(Own):
    nu: float = 0.25


T = TypeVar("T", bound=Own)


class Between(DomainClient[T]):
    """A base for several methods, which passes the argument on."""


class Said(DomainClient):
    """As methods of other packages do that were written before there was an argument."""

    params_model = Own


class Both(DomainClient[Own]):
    params_model = Longer


@pytest.mark.parametrize(
    ("base", "model"),
    [
        (Parametrised[Own], Own),
        (DomainClient[Own], Own),
        (DomainStrategy[Longer], Longer),
        (DomainClient, Params),
        (DomainClient[Any], Params),
        (Between, Own),
        (Between[Longer], Longer),
        (Said, Own),
        (Both, Longer),
    ],
)
def test_the_model_of_the_parameters(base: Any, model: Any) -> None:
    class Class(base):
        pass

    class Further(Class):
        pass

    assert Class.params_model is Further.params_model is model


def test_no_parameter_is_called_name() -> None:
    with pytest.raises(TypeError, match="Named: a parameter cannot be called 'name'"):

        class Named(Params):
            name: str = "x"


# --- ranges of a search -------------------------------------------------------------------------------


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


# --- mappings that are keys ---------------------------------------------------------------------------------


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
