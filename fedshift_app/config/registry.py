"""Every method by name: its Strategy, its NumPyClient, and where it comes from."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fedshift_wire.errors import ConfigError
from fedshift_wire.params import Params

NO_PLUGIN = "none"


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

    def params(self) -> list[str]:
        """Return the names of the method's parameters, of both sides."""
        return sorted({name for side in self._params_models() for name in side.model_fields})

    def _params_models(self) -> tuple[type[Params], type[Params]]:
        return self.strategy_class().params_model, self.client_class().params_model

    def split_params(self, given: dict[str, Any]) -> tuple[Params, Params]:
        """Divide the method's parameters between server and node, and check them.

        Raises:
            ConfigError: If a parameter is unknown to both sides.
            pydantic.ValidationError: If a value is not allowed.
        """
        sides, allowed = self._params_models(), self.params()
        for name in given:
            if name not in allowed:
                known = ", ".join(allowed) or "none"
                raise ConfigError(f"unknown key method.{name} for method {self.name!r}; there are {known}")
        server, node = (
            side.model_validate({k: v for k, v in given.items() if k in side.model_fields}) for side in sides
        )
        return server, node


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
        Method(
            name="fedcode",
            title="Contrastive feature decoupling",
            venue="Neurocomputing 2026",
            strategy="strategies.fedcode:FedCodeStrategy",
            client="clients.fedcode:FedCodeClient",
            travels="up: prototypes of classes and of the style; down: global ones, style clusters, pseudo-label",
            private="style encoder, head",
        ),
        Method(
            name="f2dc",
            title="Feature decoupling and calibration",
            venue="CVPR 2026",
            strategy="strategies.f2dc:F2DCStrategy",
            client="clients.f2dc:F2DCClient",
            travels="with local_modules=aggregate: the modules, averaged with the weights",
            private="with local_modules=local: decoupler, corrector, auxiliary classifier",
        ),
        Method(
            name="fedicon",
            title="Invariance by contrast, test-time adaptation",
            venue="NeurIPS 2023",
            strategy="strategies.fedicon:FedICONStrategy",
            client="clients.fedicon:FedICONClient",
            travels="down: the phase of the round",
            private="personal classifier, adapted encoder (made anew for each test)",
        ),
        Method(
            name="fedseproto",
            title="Semantic prototypes",
            venue="ECAI 2024",
            strategy="strategies.fedseproto:FedSeProtoStrategy",
            client="clients.fedseproto:FedSeProtoClient",
            travels="up: a semantic prototype and a count per class; down: the global ones",
            private="domain encoder, decoder",
        ),
        Method(
            name="local",
            title="Local training, no exchange",
            venue="-",
            strategy="strategies.base:DomainStrategy",
            client="clients.local:LocalClient",
            travels="nothing, nor do the weights",
            private="the whole model",
        ),
        Method(
            name="fedavg-ft",
            title="FedAvg and fine-tuning before the test",
            venue="as in FedICON, NeurIPS 2023",
            strategy="strategies.base:DomainStrategy",
            client="clients.fedavg_ft:FedAvgFTClient",
            private="the tuned copy (made anew for each test)",
        ),
        Method(
            name="fedprox",
            title="Proximal term",
            venue="MLSys 2020",
            strategy="strategies.base:DomainStrategy",
            client="clients.fedprox:FedProxClient",
        ),
        Method(
            name="moon",
            title="Model-contrastive learning",
            venue="CVPR 2021",
            strategy="strategies.base:DomainStrategy",
            client="clients.moon:MoonClient",
            private="the previous local model",
        ),
        Method(
            name="fedbn",
            title="Local BatchNorm",
            venue="ICLR 2021",
            strategy="strategies.fedbn:FedBNStrategy",
            client="clients.fedbn:FedBNClient",
            private="BatchNorm",
        ),
        Method(
            name="fedproto",
            title="Federated prototypes",
            venue="AAAI 2022",
            strategy="strategies.fedproto:FedProtoStrategy",
            client="clients.fedproto:FedProtoClient",
            travels="up: a prototype and a count per class; down: the global ones; weights with share_weights only",
            private="the whole model; with share_weights=true nothing",
        ),
        Method(
            name="fedproc",
            title="Prototypical contrast",
            venue="FGCS 2023",
            strategy="strategies.fedproc:FedProcStrategy",
            client="clients.fedproc:FedProcClient",
            travels="up: a prototype and a count per class; down: the global ones and alpha of the round",
        ),
        Method(
            name="fpl",
            title="Cluster and unbiased prototypes",
            venue="CVPR 2023",
            strategy="strategies.fpl:FPLStrategy",
            client="clients.fpl:FPLClient",
            travels="up: a prototype and a count per class; down: the clusters' prototypes",
        ),
    )
}

#: What a configuration's section ``modules`` may name: parts that any method's model can carry.
PLUGINS: dict[str, str] = {"f2dc": "clients.modules.f2dc:Decoupling"}


def check_plugin(name: str) -> None:
    """Refuse a name that the section ``modules`` may not have.

    Raises:
        ConfigError: With the names that there are.
    """
    if name not in (NO_PLUGIN, *PLUGINS):
        raise ConfigError(f"modules.name: unknown modules {name!r}; there are {NO_PLUGIN}, {', '.join(PLUGINS)}")


def plugin_params(modules: Mapping[str, Any]) -> Params:
    """Return the checked parameters of a section ``modules``.

    Raises:
        ConfigError: If its name or a parameter is unknown.
        pydantic.ValidationError: If a value is not allowed.
    """
    name = str(modules.get("name", ""))
    check_plugin(name)
    given = {key: value for key, value in modules.items() if key != "name"}
    model = Params if name == NO_PLUGIN else cast(type[Params], _import(PLUGINS[name]).params_model)
    for key in given:
        if key not in model.model_fields:
            known = ", ".join(sorted(model.model_fields)) or "none"
            raise ConfigError(f"unknown key modules.{key} for modules.name={name}; there are {known}")
    return model.model_validate(given)


def make_plugin(modules: Mapping[str, Any]) -> Any:
    """Return the ``clients.modules.base.Plugin`` of a section ``modules``, None for the name ``none``."""
    params = plugin_params(modules)
    return None if modules["name"] == NO_PLUGIN else _import(PLUGINS[modules["name"]])(params)


def markdown() -> str:
    """Return all methods as a table for a README that lies beside ``docs``."""
    head = ("name", "method", "venue", "travels besides the weights", "stays on the node", "page")
    rows = [
        (f"`{m.name}`", m.title, m.venue, m.travels, m.private, f"[{m.name}](docs/methods/{m.name}.md)")
        for m in METHODS.values()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


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
