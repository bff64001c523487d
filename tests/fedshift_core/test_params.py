"""A class knows its parameters from its type argument, or says them itself."""

from typing import Any, TypeVar

import pytest

from fedshift_clients.base import DomainClient
from fedshift_core.params import Parametrised, Params
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
