"""Every method by name: FedShift's own (conf/methods), those of installed packages, those of a user's own files."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, get_args

from clients.adapt.catalog import ADAPTATIONS as ADAPTATIONS
from clients.modules.catalog import MODULES as MODULES
from fedshift_app.config.files import CONF, names
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS, Registry
from fedshift_core.features import FEATURES as FEATURES
from fedshift_core.features import OURS as OUR_FEATURES
from fedshift_core.features import shared_name
from fedshift_core.params import Params
from fedshift_core.registry import Group, Method, imported, method_file
from fedshift_core.spelling import meant
from strategies.contributions import described

NONE = "none"  # the name of no adaptation
FIRST = "fedavg"  # of all lists
GROUP_TITLES: dict[Group, str] = {
    "papers": "the five papers",
    "weights": "weights: how they are trained, weighed and merged",
    "prototypes": "prototypes and distillation",
    "personal": "personal models",
    "test-time": "at test time",
    "other": "others",
}
_GROUPS = get_args(Group)


class _Files(Mapping[str, Method]):
    """The methods of conf/methods: a file is read when its method is asked for, all of them when they are listed."""

    def __iter__(self) -> Iterator[str]:
        read = [self[name] for name in _names()]
        return iter([m.name for m in sorted(read, key=lambda m: (m.name != FIRST, _GROUPS.index(m.group), m.name))])

    def __len__(self) -> int:
        return len(_names())

    def __contains__(self, name: object) -> bool:
        return name in _names()

    def __getitem__(self, name: str) -> Method:
        return _read(name)


@functools.cache  # methods are looked up several times for each message
def _names() -> tuple[str, ...]:
    return tuple(names("methods"))


@functools.cache
def _read(name: str) -> Method:
    return method_file(CONF / "methods" / f"{name}.yaml")


METHODS: Registry[Method] = Registry("method", "fedshift.methods", lambda: Method, _Files())


def get(name: str) -> Method:
    """Return a method by name; a recipe with the classes of the method that it is made of.

    Raises:
        ConfigError: If there is none of that name, or its package cannot be used.
    """
    method = METHODS[name]
    if not method.of:
        return method
    base = METHODS[method.of]
    if base.of:
        raise ConfigError(f"method {name!r} is a recipe of {method.of!r}, which is a recipe itself")
    return method.made_of(base)


def known(name: str) -> Method | None:
    """Return a method by name; None if it is not here, as of a finished run whose plugin or package is elsewhere."""
    try:
        return get(name)
    except ConfigError:
        return None


def label(name: str) -> str:
    """Return a method's name as tables, pages and logs show it; one that is not here (an old file's) as it is."""
    method = known(name)
    return name if method is None else method.label


def approximation_told(name: str) -> str:
    """Return in one line why a method is an approximation; empty where it is its paper's."""
    method = known(name)
    why = "" if method is None else method.approximation
    return f"{name} is an approximation of its paper's method: {why}" if why else ""


def modules_params(name: str, given: Mapping[str, Any]) -> Params:
    """Return the checked parameters of one entry of the section ``modules``.

    Raises:
        ConfigError: If its name or a parameter is unknown.
        pydantic.ValidationError: If a value is not allowed.
    """
    return _checked(imported(MODULES.named(name, "modules").modules).params_model, given, f"modules.{name}")


def feature_params(name: str, given: Mapping[str, Any]) -> Params:
    """Return the checked parameters of one entry of the section ``features``.

    Raises:
        ConfigError: If its name or a parameter is unknown, or it or a name that it declares is FedShift's own.
        pydantic.ValidationError: If a value is not allowed.
    """
    feature = FEATURES.named(name, "features")
    if FEATURES.origin(name) == OURS:
        raise ConfigError(f"features: {name} is a feature of every run; its key is {feature.option}")
    if taken := shared_name((*OUR_FEATURES, feature)):
        raise ConfigError(f"features: {name} declares {taken!r}, which is a name of a feature of every run")
    return _checked(feature.params, given, f"features.{name}")


def adapt_params(section: Mapping[str, Any]) -> Params:
    """Return the checked parameters of a section ``adapt``.

    Raises:
        ConfigError: If its name or a parameter is unknown.
        pydantic.ValidationError: If a value is not allowed.
    """
    name = str(section.get("name", NONE))
    model = Params if name == NONE else imported(ADAPTATIONS.named(name, "adapt.name").adaptation).params_model
    return _checked(
        model, {key: value for key, value in section.items() if key != "name"}, "adapt", f"adapt.name={name}"
    )


def _checked(model: type[Params], given: Mapping[str, Any], section: str, of: str = "") -> Params:
    for key in given:
        if key not in model.model_fields:
            known = ", ".join(sorted(model.model_fields)) or "none"
            raise ConfigError(
                f"unknown key {section}.{key}{f' for {of}' if of else ''}; there are {known}"
                f"{meant(key, model.model_fields)}",
                keys=((*section.split("."), key),),
            )
    return model.model_validate(given)


def contributed(method: Method) -> str:
    """Return what a method's nodes contribute, for people; what only another setting sends stands last, with it."""
    declared, optional = method.strategy_class().contributes, method.strategy_class().optional
    parts = [described({name: shape for name, shape in declared.items() if name not in optional})]
    for setting in dict.fromkeys(optional.values()):
        own = {name: shape for name, shape in declared.items() if optional.get(name) == setting}
        parts.append(f"with {setting} also {described(own)}")
    return ", ".join(parts)


def travels(method: Method) -> str:
    """Return what travels besides the shared weights, in both directions."""
    up = contributed(method)
    parts = ([] if up == "nothing" else [f"up: {up}"]) + ([] if method.down == "nothing" else [f"down: {method.down}"])
    parts += [f"numbers: {method.numbers}"] if method.numbers else []
    return "; ".join(parts) or "nothing"


def listed() -> list[Method]:
    """Return all methods that can be used, in the order of lists; recipes with their classes."""
    return [get(name) for name in METHODS]


def markdown() -> str:
    """Return FedShift's own methods as a table for a README that lies beside ``docs``."""
    head = ("name", "method", "venue", "travels besides the weights", "stays on the node", "page")
    rows: list[Sequence[str]] = []
    ours = [m for m in listed() if METHODS.origin(m.name) == OURS]
    for group, found in groupby(ours, key=lambda m: None if m.name == FIRST else m.group):  # listed in groups
        if group:
            rows.append((f"**{GROUP_TITLES[group]}**", *[""] * (len(head) - 1)))
        rows += [
            (marked(m.name), m.title, m.venue, travels(m), m.private, f"[{m.name}](docs/methods/{m.name}.md)")
            for m in found
        ]  # fmt: skip
    return table(head, rows)


def privacy_markdown() -> str:
    """Return what nodes of each of FedShift's own methods contribute besides weights, as docs/security.md has it."""
    rows = [
        (marked(m.name), f"numbers: {m.numbers}" if m.numbers else contributed(m), m.private)
        for m in listed()
        if METHODS.origin(m.name) == OURS
    ]
    return table(("method", "a node sends besides weights", "stays on the node"), rows)


def marked(name: str) -> str:
    """Return a method's label as Markdown has it."""
    return f"`{name}`{label(name).removeprefix(name)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
