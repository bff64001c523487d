"""Defines a method: a Strategy, a NumPyClient, defaults and a description, all in one YAML file.

    # my_package/mine.yaml
    about:
      title: Equal domains, short features
      strategy: my_package.server:MineStrategy   # if absent: FedAvg's, or that of the method under ``of``
      client: my_package.node:MineClient         # likewise
      params: my_package.params:MineParams       # parameters of both sides, where no torch is needed to read them
      off: method.mu=0                           # turns the method's own terms off, which leaves FedAvg
      terms: [length]                            # names of its own loss terms
    mu: 0.01                                     # defaults of its parameters
    images: {views: 2}                           # and settings of other sections

``of: fedavg`` makes the file a recipe: that method with the sections that the file sets.
"""

import functools
import importlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from fedshift_core import ranges
from fedshift_core.errors import ConfigError
from fedshift_core.frozen import FrozenDict, Section
from fedshift_core.limits import shortened
from fedshift_core.params import Params
from fedshift_core.spelling import meant
from fedshift_core.yaml_files import read_yaml

FEDAVG_STRATEGY, FEDAVG_CLIENT = "fedshift_strategies.base:DomainStrategy", "fedshift_clients.base:DomainClient"
Group = Literal["papers", "weights", "prototypes", "personal", "test-time", "other"]


class Method(BaseModel):
    """A method, with its classes as ``module:Class``, so that a list imports neither, or as objects.

    Attributes:
        name: Its name in a configuration.
        title: One line for lists.
        latex: Its name as papers print it, in LaTeX; empty if that is ``name``.
        venue: Where it was published.
        cite: BibTeX of its paper, whose key is the method's name (``fedshift cite``).
        cites: Keys of all entries that a run of it cites, where that is not the one of ``cite``.
        group: Its group in lists.
        strategy: The Strategy, a ``DomainStrategy``.
        client: The NumPyClient, a ``DomainClient``.
        params: The class of its parameters, which both sides are given, in a module without torch: with it a wrong key
            is refused, and keys are listed, without the seconds that torch takes to import. If absent, the classes of
            client and strategy tell. Once called ``node_params``.
        down: What the server sends besides the shared weights. What nodes send is ``DomainStrategy.contributes``.
        numbers: A few numbers that nodes send besides, because a section of the method requests them.
        private: What never leaves a node.
        of: The base method of a recipe; empty for other methods.
        parameters: For a recipe, what ``method.KEY`` stands for: a dotted key of another section, several of them, or
            ``{key: DOTTED, values: {GIVEN: MEANT}}``.
        needs: For a recipe, settings that must not change: values by dotted key, ``network: batchnorm``,
            ``features: given`` (``dataset.features``).
        off: The settings that turn its own terms off and leave FedAvg, bit for bit; empty if there are none.
        never_off: Why it cannot be FedAvg; empty if it can.
        one_domain: What it makes of a node that holds images of several domains, where it counts on one; else empty.
        terms: Names of its own loss terms with its own settings. The server accepts no others from a node.
        other_terms: Names of loss terms that it has with other settings only.
        trains: Whether nodes train; if not, they report no loss terms.
        of_features: Which of its terms depend on features, and on what the server sent, alone: if nothing up to the
            features trains, they have no gradient.
        switches: Of such a term, by name, the parameters that must be on for it to be so, separated by spaces: ``NAME``
            is on if it is neither 0 nor false, ``NAME=VALUE`` if it has that value.
        scores: Names of its nodes' further scores of test images (``Scores.others``). The server accepts no others.
        short: Settings that a run of two rounds needs, for tests.
        approximation: Why it only approximates its paper's method; empty if it does not. Tables, pages and logs then
            say so next to its name.
        search: Ranges of its parameters for ``fedshift tune``, by name (``fedshift_core.ranges``); a key of another
            section is dotted. The ranges in FedAvg's file apply to every method.
        defaults: Parameters by name, and sections (``images``, ``train``, ...).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    title: str
    latex: str = ""
    venue: str = "-"
    cite: str = ""
    cites: tuple[str, ...] | None = None
    group: Group = "other"
    strategy: str | type[Any] = ""
    client: str | type[Any] = ""
    params: str | type[Params] = Field("", validation_alias=AliasChoices("params", "node_params"))
    down: str = "nothing"
    numbers: str = ""
    private: str = "nothing"
    of: str = ""
    parameters: Section = FrozenDict({})
    needs: Section = FrozenDict({})
    off: str = ""
    never_off: str = ""
    one_domain: str = ""
    terms: tuple[str, ...] = ()
    other_terms: tuple[str, ...] = ()
    trains: bool = True
    of_features: tuple[str, ...] = ()
    switches: Section = FrozenDict({})
    scores: tuple[str, ...] = ()
    short: str = ""
    approximation: str = ""
    search: Section = FrozenDict({})
    defaults: Section = FrozenDict({})

    @field_validator("search")
    @classmethod
    def _are_ranges(cls, search: Mapping[str, Any]) -> Mapping[str, Any]:
        for key, stated in search.items():
            ranges.read(stated, key)
        return search

    @model_validator(mode="after")
    def _of_its_terms(self) -> "Method":
        unknown = [term for term in self.of_features if term not in (*self.terms, *self.other_terms)]
        unknown += [term for term in self.switches if term not in self.of_features]
        if unknown:
            raise ValueError(f"of_features and switches: {unknown[0]!r} is not one of its terms")
        return self

    def made_of(self, base: "Method") -> "Method":
        """Return a recipe with the classes and the defaults of its base method."""
        return self.model_copy(
            update={
                "strategy": self.strategy or base.strategy,
                "client": self.client or base.client,
                "params": self.params or ("" if self.client else base.params),
                "approximation": self.approximation or base.approximation,
                "defaults": FrozenDict(base.defaults | self.defaults),
                "search": FrozenDict(base.search | self.search),
            }
        )

    @property
    def label(self) -> str:
        """Its name for tables, pages and logs."""
        return f"{self.name} (approximation)" if self.approximation else self.name

    def strategy_class(self) -> Any:
        """Import and return the Strategy (a subclass of ``DomainStrategy``)."""
        return imported(self.strategy or FEDAVG_STRATEGY)

    def client_class(self) -> Any:
        """Import and return the NumPyClient (a subclass of ``DomainClient``)."""
        return imported(self.client or FEDAVG_CLIENT)

    def known_keys(self) -> list[str]:
        """Return the allowed keys ``method.KEY``: its parameters, and those that stand for keys of other sections."""
        return sorted({*self.params_class().model_fields, *self.parameters})

    def params_class(self) -> type[Params]:
        """Return the class of the method's parameters, which both sides are given.

        Raises:
            ConfigError: If its strategy and its client declare two classes with a field in common.
        """
        server, node = params_of(self.strategy or FEDAVG_STRATEGY), params_of(self.client or FEDAVG_CLIENT, self.params)
        if issubclass(node, server) or issubclass(server, node):
            return node if issubclass(node, server) else server
        if twice := sorted(server.model_fields.keys() & node.model_fields.keys()):
            raise ConfigError(
                f"method {self.name!r}: {server.__name__} of its strategy and {node.__name__} of its client both "
                f"declare {twice[0]}; a parameter of both sides is of one class, the method's params: module:Class"
            )
        return _joined(server, node)

    def checked_params(self, given: Mapping[str, Any]) -> Params:
        """Return the method's parameters, checked.

        Raises:
            ConfigError: If one is unknown.
            pydantic.ValidationError: If a value is not allowed.
        """
        return checked(self.params_class(), given, "method", f"method {self.name!r}", self.known_keys())


def checked(
    model: type[Params], given: Mapping[str, Any], section: str, of: str = "", known: Collection[str] = ()
) -> Params:
    """Return the parameters in a section, checked.

    Args:
        model: Their class.
        given: The parameters by name.
        section: The section, for messages.
        of: The thing that they are of, for messages.
        known: The keys of the section; by default the parameters.

    Raises:
        ConfigError: If one is unknown.
        pydantic.ValidationError: If a value is not allowed.
    """
    known = known or sorted(model.model_fields)
    if unknown := next((key for key in given if key not in model.model_fields), None):
        raise ConfigError(
            f"unknown key {section}.{shortened(unknown)}{of and f' for {of}'}; there are {', '.join(known) or 'none'}"
            f"{meant(unknown, known)}",
            keys=((*section.split("."), unknown),),
        )
    return model.model_validate(given)


def name_and_params(entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name in an entry of a section such as ``modules``, and the parameters next to it."""
    return str(entry["name"]), {key: value for key, value in entry.items() if key != "name"}


@functools.cache
def _joined(*sides: type[Params]) -> type[Params]:
    """Return one class of the parameters of a method whose sides declare one each."""
    return create_model(sides[-1].__name__, __base__=sides)


def method_file(path: Path) -> Method:
    """Return the method of a YAML file, named like the file.

    Raises:
        ConfigError: If it cannot be read, or has an unknown key or a wrong value under ``about``.
    """
    content = read_yaml(path, scalar_keys=True)  # ``values`` of a parameter
    about_section, of = content.pop("about", None) or {}, content.pop("of", "")
    about = {
        "off" if key is False else key: value for key, value in about_section.items()
    }  # YAML 1.1 reads off as false
    try:
        return Method(**{"name": path.stem, "of": of, "defaults": content} | about)
    except ConfigError as error:
        raise ConfigError(f"{path}: about.search.{error}") from None
    except (ValidationError, TypeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("",), "msg": str(error)}
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: about.{where}: {first['msg']}") from None


def params_of(owner: str | type[Any], named: str | type[Params] = "") -> type[Params]:
    """Return the parameters' class of a strategy, a client, modules or an adaptation.

    Args:
        owner: Their class, which need not be imported where the parameters are named.
        named: The class of the parameters; empty if it is not named.
    """
    if named:
        return cast(type[Params], imported(named))
    if owner in (FEDAVG_STRATEGY, FEDAVG_CLIENT):
        return Params
    return cast(type[Params], imported(owner).params_model)


def imported(path: Any) -> Any:
    """Return the object of ``module:Name``; a class or a function is returned as it is."""
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    return cast(Any, getattr(importlib.import_module(module), name))
