"""``fedshift methods``: all in their groups, or one with its page, its parameters and what travels."""

import functools
from collections.abc import Mapping
from typing import Any, get_args

from fedshift.run.catalog import ranges
from fedshift.run.catalog.ranges import NONE, Parameter, as_yaml
from fedshift.run.columns import columns, facts, wrapped
from fedshift_app.config import files, registry
from fedshift_app.config import resolving as configuration
from fedshift_app.config.layers import Layer, section_of, split_key
from fedshift_app.config.recipes import parameter_of_key, targets_of
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import split_sections
from fedshift_core.extensions import OURS
from fedshift_core.limits import some
from fedshift_core.ranges import read
from fedshift_core.registry import FEDAVG_CLIENT, FEDAVG_STRATEGY, Group, Method
from fedshift_core.yaml_files import read_yaml

HEAD = ("key", "default", "allowed", "set in the tables of papers")
MOST_NAMED = 3  # experiments next to a value


def listed() -> list[str]:
    """Return a line for each method, in groups as the README has them."""
    methods = [registry.METHODS[name] for name in registry.METHODS]
    width = max(len(method.name) for method in methods) + 2
    lines = [_line(method, width, "") for method in methods if method.name == registry.FIRST]
    for group in get_args(Group):
        of_group = [method for method in methods if method.group == group and method.name != registry.FIRST]
        lines += ["", registry.GROUP_TITLES[group]] if of_group else []
        lines += [_line(method, width, "  ") for method in of_group]
    return lines


def _line(method: Method, width: int, indent: str) -> str:
    origin = registry.METHODS.origin(method.name)
    of = f"; {method.of} with settings" if method.of else ""
    package = "" if origin == OURS else f" [{origin}]"
    why = registry.get(method.name).approximation
    approximation = f"; an approximation: {why}" if why else ""
    return f"{indent + method.name:<{width}}  {method.title} ({method.venue}){of}{approximation}{package}"


def described(name: str) -> str:
    """Return what there is to know of a method.

    Raises:
        ConfigError: If there is none of that name.
    """
    method = registry.get(name)
    origin = registry.METHODS.origin(name)
    lines = [f"{name}: {method.title}", *facts(_facts(method, origin))]
    if own := parameters(method):
        head, *rows = columns([HEAD, *((p.key, p.default, p.allowed, p.papers) for p in own)])
        lines += ["", "parameters, as method.KEY=VALUE", head]
        for parameter, row in zip(own, rows, strict=True):
            lines += [row, *wrapped(parameter.description)]
    else:
        lines += ["", "no own parameters"]
    if origin == OURS and (said := source(name)):
        lines += ["", f"conf/methods/{name}.yaml says of its values", *(f"  {line}" for line in said)]
    return "\n".join(lines)


def _facts(method: Method, origin: str) -> list[tuple[str, str]]:
    of, parameters = registry.METHODS[method.name].of, parameter_of_key(method)  # a recipe's parameters say these
    asks = {".".join(key): value for key, value in split_sections(method.defaults)[1].items()}
    return [
        ("venue", method.venue),
        ("group", registry.GROUP_TITLES[method.group]),
        ("from", "" if origin == OURS else origin),
        ("page", files.doc_page(registry.page(method)) if origin == OURS else ""),
        ("is", f"{of} with settings" if of else ""),
        ("is not", f"an approximation of its paper's method: {method.approximation}" if method.approximation else ""),
        ("server", _class(method.strategy or FEDAVG_STRATEGY)),
        ("node", _class(method.client or FEDAVG_CLIENT)),
        ("travels", f"in addition to the weights: {registry.travels(method)}"),
        ("stays", f"on the node: {method.private}"),
        ("asks for", _settings({key: value for key, value in asks.items() if key not in parameters})),
        ("tuned in", ", ".join(f"{key} {as_yaml(read(space, key).as_yaml())}" for key, space in method.search.items())),
        ("needs", _settings(method.needs)),
        ("mixed", f"nodes (allocation.mixing): {method.one_domain}" if method.one_domain else ""),
        ("as FedAvg", f"with {method.off}" if method.off else method.never_off),
    ]


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={as_yaml(value)}" for key, value in values.items())


def source(name: str) -> list[str]:
    """Return the comment that the file of one of our methods begins with: where its values are from."""
    lines = (files.CONF / "methods" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return [line.lstrip("# ") for line in lines[:end]]


def parameters(method: Method) -> list[Parameter]:
    """Return the parameters of a method: its own, and those that a recipe has for other keys.

    Args:
        method: As :func:`registry.get` returns it.
    """
    said, sections = split_sections(method.defaults)
    model = method.params_class()
    described = []
    for key in method.known_keys():
        own = ranges.described(model, key) if key in model.model_fields else _stood_for(method, key, sections)
        default = as_yaml(said[key]) if key in said else own.default
        described.append(own._replace(key=key, default=default, papers=_papers(method.name, key)))
    return described


def _stood_for(method: Method, key: str, sections: Layer) -> Parameter:
    """Return a recipe's parameter as the key that it stands for has it, with the recipe's own default."""
    dotted, meanings = targets_of(method, key)[0]
    section, *_, last = place = split_key(dotted)
    model = ranges.model_of(dotted)
    if section == "adapt" and ("adapt", "name") in sections:
        model = ranges.adaptation_model(sections["adapt", "name"])
    own, value = Parameter(key, NONE, NONE, NONE), sections.get(place)
    if model is not None and last in model.model_fields:
        own, value = ranges.described(model, last), sections.get(place, model.model_fields[last].default)
    description = own.description or RunConfig.model_fields[section].description or ""
    if meanings:
        value = {meant: word for word, meant in meanings.items()}.get(value, value)
        own = own._replace(kind="word", bounds=", ".join(map(as_yaml, meanings)))
    return own._replace(default=as_yaml(value), description=description)


def _papers(name: str, key: str) -> str:
    """Return what experiments of papers' tables set a parameter to, and which."""
    by_value: dict[str, list[str]] = {}
    for experiment, settings in _experiments():
        own = section_of(settings, "method")
        said = section_of(section_of(settings, "methods"), name) | (own if own.get("name") == name else {})
        if key in said:
            by_value.setdefault(as_yaml(said[key]), []).append(experiment)
    return "; ".join(f"{value} ({some(names, MOST_NAMED)})" for value, names in by_value.items())


@functools.cache
def _experiments() -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return the experiments that stand for papers' tables."""
    read = ((name, read_yaml(configuration.experiment_file(name))) for name in files.names("experiments"))
    return tuple((name, settings) for name, settings in read if settings.get("paper"))


def _class(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}:{kind.__name__}"
