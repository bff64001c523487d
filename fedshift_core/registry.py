"""What a method is: a Strategy, a NumPyClient, defaults, and what is said of it. A YAML file says it all.

    # my_package/mine.yaml
    about:
      title: Equal domains, short features
      strategy: my_package.server:MineStrategy   # left out: FedAvg's, or that of the method under ``of``
      client: my_package.node:MineClient         # likewise
      off: method.mu=0                           # turns the method's own terms off, which leaves FedAvg
      terms: [length]                            # names of its own loss terms
    mu: 0.01                                     # defaults of its parameters
    images: {views: 2}                           # and what it asks of other sections

``of: fedavg`` makes the file a recipe: that method with the sections that the file sets.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from fedshift_core import ranges
from fedshift_core.errors import ConfigError
from fedshift_core.frozen import FrozenDict, Section
from fedshift_core.limits import shortened
from fedshift_core.params import Params
from fedshift_core.spelling import meant
from fedshift_core.yaml_files import read_yaml

FEDAVG_STRATEGY, FEDAVG_CLIENT = "strategies.base:DomainStrategy", "clients.base:DomainClient"
Group = Literal["papers", "weights", "prototypes", "personal", "test-time", "other"]


class Method(BaseModel):
    """A method. Its classes are named as ``module:Class``, so that a list imports neither, or given themselves.

    Attributes:
        name: The name by which a configuration asks for it.
        title: One line for lists.
        venue: Where it was published.
        group: Where lists have it.
        strategy: The Strategy, a ``DomainStrategy``.
        client: The NumPyClient, a ``DomainClient``.
        down: What the server sends besides the shared weights. What nodes send is ``DomainStrategy.contributes``.
        numbers: What nodes tell besides because a section of its own asks for it, a few numbers each.
        private: What never leaves a node.
        of: The method that a recipe is made of; empty for a method of its own.
        parameters: Of a recipe, what ``method.KEY`` stands for: a dotted key of another section, several of them, or
            ``{key: DOTTED, values: {GIVEN: MEANT}}``.
        needs: Of a recipe, what must stay as it says: values by dotted key, ``network: batchnorm``.
        off: The settings that turn its own terms off and leave FedAvg, bit for bit; empty where there are none.
        never_off: Why it cannot be FedAvg; empty where it can.
        terms: Names of its own loss terms, with its own settings. The server takes no other from a node.
        other_terms: Names of those that it has with other settings only.
        scores: Names of other ways in which its nodes score test images (``Scores.others``); likewise.
        short: Settings that a run of two rounds needs, for tests.
        approximation: Why it is an approximation of its paper's method only; empty where it is that. Whatever names the
            method in a table, on a page or in a log then says so.
        search: Where ``fedshift tune`` looks for the values of its parameters, by name (``fedshift_core.ranges``); a
            key of another section is dotted. What FedAvg's file says counts for every method.
        defaults: Parameters by name, and sections (``images``, ``train``, ...).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    title: str
    venue: str = "-"
    group: Group = "other"
    strategy: str | type[Any] = ""
    client: str | type[Any] = ""
    down: str = "nothing"
    numbers: str = ""
    private: str = "nothing"
    of: str = ""
    parameters: Section = FrozenDict({})
    needs: Section = FrozenDict({})
    off: str = ""
    never_off: str = ""
    terms: tuple[str, ...] = ()
    other_terms: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    short: str = ""
    approximation: str = ""
    search: Section = FrozenDict({})
    defaults: Section = FrozenDict({})

    @field_validator("search")
    @classmethod
    def _are_ranges(cls, search: Mapping[str, Any]) -> Mapping[str, Any]:
        for key, told in search.items():
            ranges.read(told, key)
        return search

    def made_of(self, base: "Method") -> "Method":
        """Return a recipe with the classes and the defaults of the method that it is made of."""
        return self.model_copy(update={
            "strategy": self.strategy or base.strategy, "client": self.client or base.client,
            "approximation": self.approximation or base.approximation,
            "defaults": FrozenDict(base.defaults | self.defaults), "search": FrozenDict(base.search | self.search),
        })  # fmt: skip

    @property
    def label(self) -> str:
        """Its name as tables, pages and logs show it."""
        return f"{self.name} (approximation)" if self.approximation else self.name

    def strategy_class(self) -> Any:
        """Import and return the Strategy (a subclass of ``DomainStrategy``)."""
        return imported(self.strategy or FEDAVG_STRATEGY)

    def client_class(self) -> Any:
        """Import and return the NumPyClient (a subclass of ``DomainClient``)."""
        return imported(self.client or FEDAVG_CLIENT)

    def params(self) -> list[str]:
        """Return the names of the method's parameters, of both sides."""
        return sorted({name for side in self.params_models() for name in side.model_fields})

    def known_keys(self) -> list[str]:
        """Return what ``method.KEY`` may be: its parameters, and those that stand for keys of other sections."""
        return sorted({*self.params(), *self.parameters})

    def params_models(self) -> tuple[type[Params], type[Params]]:
        """Return the models of the parameters: of the server's side, of the node's."""
        return self.strategy_class().params_model, self.client_class().params_model

    def split_params(self, given: Mapping[str, Any]) -> tuple[Params, Params]:
        """Divide the method's parameters between server and node, and check them.

        Raises:
            ConfigError: If a parameter is unknown to both sides.
            pydantic.ValidationError: If a value is not allowed.
        """
        sides, allowed = self.params_models(), self.params()
        for name in given:
            if name not in allowed:
                known = ", ".join(self.known_keys()) or "none"
                raise ConfigError(
                    f"unknown key method.{shortened(name)} for method {self.name!r}; there are {known}"
                    f"{meant(name, self.known_keys())}",
                    keys=(("method", name),),
                )
        server, node = (
            side.model_validate({k: v for k, v in given.items() if k in side.model_fields}) for side in sides
        )
        return server, node


def method_file(path: Path) -> Method:
    """Return the method of a YAML file, whose name is the method's.

    Raises:
        ConfigError: If it cannot be read or says something of a method that there is not.
    """
    content = read_yaml(path, scalar_keys=True)  # ``values`` of a parameter
    said, of = content.pop("about", None) or {}, content.pop("of", "")
    about = {"off" if key is False else key: value for key, value in said.items()}  # YAML 1.1 reads off as false
    try:
        return Method(**{"name": path.stem, "of": of, "defaults": content} | about)
    except ConfigError as error:
        raise ConfigError(f"{path}: about.search.{error}") from None
    except (ValidationError, TypeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("",), "msg": str(error)}
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: about.{where}: {first['msg']}") from None


def imported(path: Any) -> Any:
    """Return what ``module:Name`` stands for; a class or a function stands for itself."""
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    return cast(Any, getattr(importlib.import_module(module), name))
