"""``fedshift methods``: lists all methods in groups, or describes one."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import yaml

from fedshift.catalog import ranges
from fedshift.catalog.tables import columns, facts
from fedshift_app.config import files, registry
from fedshift_app.config import resolving as configuration
from fedshift_app.config.layers import modules_by_name, section_of
from fedshift_app.config.recipes import said_by, targets_of
from fedshift_core.extensions import OURS
from fedshift_core.ranges import read
from fedshift_core.registry import FEDAVG_CLIENT, FEDAVG_STRATEGY, Group, Method
from fedshift_core.yaml_files import read_yaml

PAGES = "docs/methods"  # of the repository
EQUATIONS = "#equations"  # of a page
HEAD = ("key", "default", "allowed", "set in the tables of papers")
NONE = "-"
MOST_NAMED = 3  # experiments listed with a value


@dataclass(frozen=True)
class Parameter:
    """A parameter of a method, set as ``method.KEY``.

    Attributes:
        key: Its name.
        default: As YAML writes it.
        allowed: In words.
        papers: Values and names of the experiments for a paper's table that set it.
    """

    key: str
    default: str
    allowed: str
    papers: str


def listed() -> list[str]:
    """Return a line for each method, in the groups of the README."""
    methods = [registry.METHODS[name] for name in registry.METHODS]
    width = max(len(method.name) for method in methods) + 2
    lines = [_line(method, width, "") for method in methods if method.name == registry.FIRST]
    for group in get_args(Group):
        members = [method for method in methods if method.group == group and method.name != registry.FIRST]
        lines += ["", registry.GROUP_TITLES[group]] if members else []
        lines += [_line(method, width, "  ") for method in members]
    return lines


def _line(method: Method, width: int, indent: str) -> str:
    origin = registry.METHODS.origin(method.name)
    of = f"; {method.of} with settings" if method.of else ""
    package = "" if origin == OURS else f" [{origin}]"
    why = registry.get(method.name).approximation
    approximation = f"; an approximation: {why}" if why else ""
    return f"{indent + method.name:<{width}}  {method.title} ({method.venue}){of}{approximation}{package}"


def described(name: str) -> str:
    """Return the description of a method.

    Raises:
        ConfigError: If there is none of that name.
    """
    method = registry.get(name)
    origin = registry.METHODS.origin(name)
    lines = [f"{name}: {method.title}", *facts(_facts(method, origin))]
    if own := parameters(method):
        rows = [HEAD, *((parameter.key, parameter.default, parameter.allowed, parameter.papers) for parameter in own)]
        lines += ["", "parameters, as method.KEY=VALUE", *columns(rows)]
    else:
        lines += ["", "no parameters of its own"]
    if origin == OURS and (comment := source(name)):
        lines += ["", f"conf/methods/{name}.yaml says of its values", *(f"  {line}" for line in comment)]
    return "\n".join(lines)


def _facts(method: Method, origin: str) -> list[tuple[str, str]]:
    of = registry.METHODS[method.name].of
    _, sections = _divided(method)
    from_recipe = said_by(method)  # set by a recipe's parameters
    asks = ", ".join(f"{key}={_yaml(value)}" for key, value in _dotted(sections).items() if key not in from_recipe)
    needs = ", ".join(f"{key}={_yaml(value)}" for key, value in method.needs.items())
    return [
        ("venue", method.venue),
        ("group", registry.GROUP_TITLES[method.group]),
        ("from", "" if origin == OURS else origin),
        ("page", page(method.name) if origin == OURS else ""),
        ("is", f"{of} with settings" if of else ""),
        ("is not", f"its paper's method, but an approximation: {method.approximation}" if method.approximation else ""),
        ("server", _class(method.strategy or FEDAVG_STRATEGY)),
        ("node", _class(method.client or FEDAVG_CLIENT)),
        ("travels", f"besides the weights: {registry.travels(method)}"),
        ("stays", f"on the node: {method.private}"),
        ("asks for", asks),
        ("tuned in", ", ".join(f"{key} {_yaml(read(text, key).told())}" for key, text in method.search.items())),
        ("needs", needs),
        ("as FedAvg", f"with {method.off}" if method.off else method.never_off),
    ]


def page(name: str) -> str:
    """Return the page of one of our methods and its equations: the full path if it is on this machine.

    Some pages have no equations, such as FedAvg's.
    """
    path = f"{PAGES}/{name}.md"
    local = files.APP / path
    if not local.is_file():
        return path
    return f"{local}{EQUATIONS}" if "\n## Equations\n" in local.read_text(encoding="utf-8") else str(local)


def source(name: str) -> list[str]:
    """Return the first comment of a method's file, which names the sources of its values."""
    lines = (files.CONF / "methods" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return [line.lstrip("# ") for line in lines[:end]]


def parameters(method: Method) -> list[Parameter]:
    """Return the parameters of a method: of its server and node, and a recipe's names for other keys.

    Args:
        method: As :func:`registry.get` returns it.
    """
    own_defaults, sections = _divided(method)
    sides = {name: side for side in method.params_models() for name in side.model_fields}
    rows = []
    for key in method.known_keys():
        if key in sides:
            default, allowed = own_defaults.get(key, ranges.default(sides[key], key)), ranges.allowed(sides[key], key)
        else:
            default, allowed = _stood_for(method, key, sections)
        rows.append(Parameter(key, _yaml(default), allowed, _papers(method.name, key)))
    return rows


def _stood_for(method: Method, key: str, sections: Mapping[str, Any]) -> tuple[Any, str]:
    """Return default and range of a recipe's parameter, which are those of its target key."""
    target = targets_of(method, key)[0]
    dotted = target if isinstance(target, str) else target["key"]
    value: Any = sections
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if dotted.startswith("adapt.") and isinstance(sections.get("adapt"), Mapping):
        model, last = ranges.adaptation_model(sections["adapt"]["name"]), dotted.rpartition(".")[2]
    else:
        model_field = ranges.model_of(dotted)
        if model_field is None:
            return value, NONE
        model, last = model_field
    value = ranges.default(model, last) if value is None else value
    if isinstance(target, str):
        return value, ranges.allowed(model, last)
    given = {meant: word for word, meant in target["values"].items()}
    return given.get(value, value), ", ".join(map(_yaml, target["values"]))


def _divided(method: Method) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the defaults in a method's file: of its own parameters, and of other sections, modules by name."""
    sections = {key: value for key, value in method.defaults.items() if key in configuration.ASKED_BY_METHODS}
    if "modules" in sections:
        sections["modules"] = modules_by_name(sections["modules"])
    return {key: value for key, value in method.defaults.items() if key not in sections}, sections


def _papers(name: str, key: str) -> str:
    """Return the values of a parameter in experiments of papers' tables, with their names."""
    by_value: dict[str, list[str]] = {}
    for experiment, settings in _of_papers(name):
        if key in settings:
            by_value.setdefault(_yaml(settings[key]), []).append(experiment)
    return "; ".join(f"{value} ({_few(names)})" for value, names in by_value.items())


def _few(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _of_papers(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the experiments for papers' tables, each with its settings of a method."""
    for experiment, content in _experiments():
        own = section_of(content, "method")
        yield experiment, section_of(section_of(content, "methods"), name) | (own if own.get("name") == name else {})


@functools.cache
def _experiments() -> tuple[tuple[str, dict[str, Any]], ...]:
    read = ((name, read_yaml(configuration.experiment_file(name))) for name in files.names("experiments"))
    return tuple((name, content) for name, content in read if content.get("paper"))


def _class(class_: Any) -> str:
    return class_ if isinstance(class_, str) else f"{class_.__module__}:{class_.__name__}"


def _yaml(value: Any) -> str:
    """Return a value as YAML."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip())


def _dotted(section: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return a nested section with dotted keys."""
    dotted: dict[str, Any] = {}
    for key, value in section.items():
        dotted |= _dotted(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return dotted
