"""A class knows its parameters from its type argument, or says them itself."""

from typing import Any, TypeVar

import pytest

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.fedproto import FedProtoClient
from fedshift_clients.methods.fedtgp import FedTGPClient
from fedshift_clients.training.prototypes import PrototypeClient
from fedshift_core.methods.fedproto import DistanceParams
from fedshift_core.methods.fedtgp import FedTGPParams
from fedshift_core.params import Parametrised, Params
from fedshift_strategies.base import DomainStrategy


class Own(Params):
    mu: float = 0.5


class Longer(Own):
    nu: float = 0.25


T = TypeVar("T", bound=Own)


class Named(Parametrised[Own]):
    pass


class Between(DomainClient[T]):
    pass


def test_the_type_argument_is_the_model_of_the_parameters() -> None:
    class Client(DomainClient[Own]):
        pass

    class Strategy(DomainStrategy[Longer]):
        pass

    assert (Client.params_model, Strategy.params_model, Named.params_model) == (Own, Longer, Own)
    assert Client.params_model().model_dump() == {"mu": 0.5}


def test_a_class_without_an_argument_has_those_of_its_base() -> None:
    class Client(DomainClient):
        pass

    class Further(Named):
        pass

    class Anything(DomainClient[Any]):
        pass

    assert (Client.params_model, Further.params_model, Anything.params_model) == (Params, Own, Params)


def test_a_base_for_several_methods_passes_the_argument_on() -> None:
    class Client(Between[Longer]):
        pass

    assert (Between.params_model, Client.params_model) == (Own, Longer)  # of a variable, the bound
    assert (FedProtoClient.params_model, FedTGPClient.params_model) == (DistanceParams, FedTGPParams)


def test_a_class_may_say_its_model_itself() -> None:
    """As methods of other packages do that were written before there was an argument."""

    class Client(DomainClient):
        params_model = Own
        params: Own

    class Prototypes(PrototypeClient[Any]):
        params_model = Longer

    class Both(DomainClient[Own]):
        params_model = Longer

    assert (Client.params_model, Prototypes.params_model, Both.params_model) == (Own, Longer, Longer)


def test_no_parameter_is_called_name() -> None:
    with pytest.raises(TypeError, match="Named: a parameter cannot be called 'name'"):

        class Named(Params):
            name: str = "x"
