"""All methods by name: FedShift's own (conf/methods), those of installed packages, and those of a user's files."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, get_args

from fedshift_app.config.files import CONF, names
from fedshift_clients.adapt.catalog import ADAPTATIONS as ADAPTATIONS
from fedshift_clients.modules.catalog import MODULES as MODULES
from fedshift_core.disclosure import WORDS
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS, Registry
from fedshift_core.features import CORE, shared_name
from fedshift_core.features import FEATURES as FEATURES
from fedshift_core.features import ours as our_features
from fedshift_core.params import Params
from fedshift_core.plural import capital
from fedshift_core.registry import Group, Method, checked, imported, method_file, params_of
from fedshift_strategies.contributions import Declaration, behind, described

NONE = "none"  # stands for no adaptation
FIRST = "fedavg"  # the first method of all lists
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
    """The methods of conf/methods: a look-up reads one file, a list reads all files."""

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
    """Return a method by name; a recipe gets the classes of its base method.

    Raises:
        ConfigError: If there is no such method, or its package cannot be used.
    """
    method = METHODS[name]
    if not method.of:
        return method
    base = METHODS[method.of]
    if base.of:
        raise ConfigError(f"method {name!r} is a recipe of {method.of!r}, which is a recipe itself")
    return method.made_of(base)


def known(name: str) -> Method | None:
    """Return a method by name; None if its plugin or package is not installed here."""
    try:
        return get(name)
    except ConfigError:
        return None


def label(name: str) -> str:
    """Return a method's label for tables, pages and logs; its name if the method is not installed here."""
    method = known(name)
    return name if method is None else method.label


def approximation_line(name: str) -> str:
    """Return a line on why a method is an approximation of its paper; empty if it is none."""
    method = known(name)
    reason = "" if method is None else method.approximation
    return f"{name} is an approximation of its paper's method: {reason}" if reason else ""


def modules_params(name: str, given: Mapping[str, Any]) -> Params:
    """Return the checked parameters of one entry of the section ``modules``.

    Raises:
        ConfigError: If its name or a parameter is unknown.
        pydantic.ValidationError: If a value is not allowed.
    """
    entry = MODULES.named(name, "modules")
    return checked(params_of(entry.modules, entry.params), given, f"modules.{name}")


def feature_params(name: str, given: Mapping[str, Any]) -> Params:
    """Return the checked parameters of one entry of the section ``features``.

    Raises:
        ConfigError: If its name or a parameter is unknown, or it or a name that it declares is FedShift's own.
        pydantic.ValidationError: If a value is not allowed.
    """
    feature = FEATURES.named(name, "features")
    if FEATURES.origin(name) == OURS:
        raise ConfigError(f"features: {name} is a feature of every run; its key is {feature.option}")
    if taken := shared_name((*our_features(), feature)):
        raise ConfigError(f"features: {name} declares {taken!r}, which is a name of a feature of every run")
    if taken := shared_name((CORE, feature)):
        raise ConfigError(f"features: {name} declares {taken!r}, which is a name of every run's own messages")
    return checked(feature.params, given, f"features.{name}")


def check_features_together(names: Iterable[str]) -> None:
    """Refuse features of a run of which two declare one name for the same kind of message.

    Raises:
        ConfigError: With both features.
    """
    for name, other in combinations(names, 2):
        if taken := shared_name((FEATURES[name], FEATURES[other])):
            raise ConfigError(f"features: {name} and {other} both declare {taken!r}; a run takes one of them")


def adaptation(section: Mapping[str, Any]) -> Any:
    """Return the class of the adaptation in a section ``adapt``; None if it names none."""
    name = section.get("name", NONE)
    return None if name == NONE else imported(ADAPTATIONS.named(name, "adapt.name").adaptation)


def adapt_params(section: Mapping[str, Any]) -> Params:
    """Return the checked parameters of a section ``adapt``.

    Raises:
        ConfigError: If its name or a parameter is unknown.
        pydantic.ValidationError: If a value is not allowed.
    """
    name = str(section.get("name", NONE))
    entry = None if name == NONE else ADAPTATIONS.named(name, "adapt.name")
    given = {key: value for key, value in section.items() if key != "name"}
    return checked(
        Params if entry is None else params_of(entry.adaptation, entry.params), given, "adapt", f"adapt.name={name}"
    )


def contributed(method: Method) -> str:
    """Return a text on what a method's nodes contribute, under the words for what it tells of their images."""
    strategy = method.strategy_class()
    contributes: Declaration = strategy.contributes
    cases = [("", "", [name for name in contributes if name not in strategy.optional])]
    for setting in dict.fromkeys(strategy.optional.values()):
        also = [name for name, needed in strategy.optional.items() if needed == setting and name in contributes]
        cases.append((f"with {setting} also ", setting, also))
    cases += [(f"with {setting} ", setting, [*words]) for setting, words in strategy.behind_with.items()]
    parts = []
    for before, setting, arrays in cases:
        key, _, value = setting.removeprefix("method.").partition("=")
        words = {name: behind(strategy, name, {key: value}) for name in arrays}
        for word in WORDS:
            if own := {name: contributes[name] for name in arrays if words[name] == word}:
                parts.append(f"{before}{word}: {described(own)}")
    return "; ".join(parts) or "nothing"


def travels(method: Method) -> str:
    """Return a text on what is sent in addition to the shared weights, in both directions; upwards with its words."""
    up = contributed(method)
    parts = ([] if up == "nothing" else [f"up: {up}"]) + ([] if method.down == "nothing" else [f"down: {method.down}"])
    parts += [f"numbers: {method.numbers}"] if method.numbers else []
    return "; ".join(parts) or "nothing"


def listed() -> list[Method]:
    """Return all usable methods in the order of lists; recipes have their classes."""
    return [get(name) for name in METHODS]


def markdown() -> str:
    """Return FedShift's own methods for a README that lies next to ``docs``: a table per group, folded."""
    head = ("name", "method", "venue", "sent in addition to weights", "stays on the node", "page")
    ours = [m for m in listed() if METHODS.origin(m.name) == OURS]
    parts = []
    for group in _GROUPS:
        rows = [
            (marked(m.name), m.title, m.venue, travels(m), m.private, f"[{m.name}]({page(m)})")
            for m in ours
            if m.group == group
        ]
        title = f"{capital(GROUP_TITLES[group])} ({len(rows)})"
        if rows:
            parts.append(f"<details><summary>{title}</summary>\n\n{table(head, rows)}\n\n</details>")
    return "\n\n".join(parts)


def page(method: Method) -> str:
    """Return where the page of one of our methods is in a checkout: written by hand, or the docstring that it is of."""
    written = f"docs/methods/{method.name}.md"
    if (CONF.parent / written).is_file() or not (CONF.parent / "docs").is_dir():
        return written
    module = str(method.strategy or method.client).partition(":")[0].replace(".", "/")
    folder = "strategies" if method.strategy else "clients"
    return f"{folder}/{module}.py" if module else f"conf/methods/{method.name}.yaml"


def marked(name: str) -> str:
    """Return a method's label in Markdown."""
    return f"`{name}`{label(name).removeprefix(name)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, with bars in cells escaped."""
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *escaped))
