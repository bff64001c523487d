"""Every method by name: its Strategy, its NumPyClient, and where it comes from."""

import importlib
from dataclasses import dataclass
from typing import Any, cast

from datasets.errors import ConfigError
from fedshift_wire import Params


@dataclass(frozen=True)
class Method:
    """A method is a pair of classes; both are named as ``module:Class`` so that a list imports neither.

    Attributes:
        name: The name by which a configuration asks for it.
        title: One line for lists.
        venue: Where it was published.
        travels: What travels besides the shared weights.
        private: What never leaves a node.
    """

    name: str
    title: str
    venue: str
    strategy: str
    client: str
    travels: str = "nothing"
    private: str = "nothing"

    def strategy_class(self) -> Any:
        """Import and return the Strategy (a subclass of ``DomainStrategy``)."""
        return _import(self.strategy)

    def client_class(self) -> Any:
        """Import and return the NumPyClient (a subclass of ``DomainClient``)."""
        return _import(self.client)

    def split_params(self, given: dict[str, Any]) -> tuple[Params, Params]:
        """Divide the method's parameters between server and node, and check them.

        Raises:
            ConfigError: If a parameter is unknown to both sides.
            pydantic.ValidationError: If a value is not allowed.
        """
        sides = (self.strategy_class().params_model, self.client_class().params_model)
        allowed = sorted({name for side in sides for name in side.model_fields})
        for name in given:
            if name not in allowed:
                known = ", ".join(allowed) or "none"
                raise ConfigError(f"unknown key method.{name} for method {self.name!r}; there are {known}")
        server, node = (
            side.model_validate({k: v for k, v in given.items() if k in side.model_fields}) for side in sides
        )
        return cast(Params, server), cast(Params, node)


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method(
            name="fedavg",
            title="Federated averaging",
            venue="AISTATS 2017",
            strategy="strategies.base:DomainStrategy",
            client="clients.base:DomainClient",
        ),
        Method(
            name="i2pfl",
            title="Intra- and inter-domain prototypes",
            venue="arXiv 2501.08521",
            strategy="strategies.i2pfl:I2PFLStrategy",
            client="clients.i2pfl:I2PFLClient",
            travels="up: a prototype and a count per class; down: the global prototypes",
        ),
    )
}


def get(name: str) -> Method:
    """Return a method by name.

    Raises:
        ConfigError: If there is none of that name.
    """
    if name not in METHODS:
        raise ConfigError(f"unknown method {name!r}; there are {', '.join(METHODS)}")
    return METHODS[name]


def _import(path: str) -> Any:
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)
