"""Checks an experiment's settings of single methods (``methods: NAME:``), also of those that do not run."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedshift_app.config import recipes, registry
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shortened
from fedshift_core.registry import Method
from fedshift_core.spelling import meant


def check(method: Method, params: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
    """Refuse unknown keys and wrong values.

    Whether values fit the rest of the run is checked when the method runs.

    Args:
        method: The method of the entry.
        params: Its parameters in the entry.
        sections: The sections of the run in the entry.

    Raises:
        ConfigError: With the key under ``methods``, the value found and what is allowed.
    """
    known = method.known_keys()
    for key in params:
        if key not in known:
            raise ConfigError(
                f"methods.{method.name}: unknown key {as_found(key)}; there are {', '.join(known) or 'none'}"
                f"{meant(str(key), known)}",
                keys=(("methods", method.name, key),),
            )
    own, stood_for = recipes.spread(method, params)
    _check(method.params_class(), own, method, ())
    for key, value in (*stood_for.items(), *sections.items()):
        annotation = RunConfig.model_fields[key].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            _check(annotation, value, method, (key,))
        elif key == "rounds":
            _check(TypeAdapter[Any](annotation or object), value, method, (key,))
        elif key == "modules":
            for name in value:
                registry.modules_params(str(name), {})


def _check(model: type[BaseModel] | TypeAdapter[Any], value: Any, method: Method, above: tuple[str, ...]) -> None:
    """Refuse wrong keys in a part of a section; other layers may set missing keys."""
    try:
        model.validate_python(value) if isinstance(model, TypeAdapter) else model.model_validate(value)
    except ValidationError as error:
        entries = [
            entry
            for entry in error.errors()
            if entry["type"] != "missing" and (entry["loc"] or isinstance(model, TypeAdapter))
        ]
        if not entries:
            return
        path = (*above, *map(str, entries[0]["loc"]))
        dotted = ".".join(("methods", method.name, *path))
        if entries[0]["type"] == "extra_forbidden" and not isinstance(model, TypeAdapter):
            fields = list(model.model_fields)
            problem = f"unknown key; there are {', '.join(fields)}{meant(path[-1], fields)}"
        else:
            problem = f"{entries[0]['msg']}, found {as_found(entries[0]['input'])}"
        raise ConfigError(f"{shortened(dotted)}: {problem}", keys=(("methods", method.name, *path),)) from None
