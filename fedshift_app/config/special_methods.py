"""What an experiment asks for other methods than the run's (``methods: NAME:``): checked whichever of them runs."""

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

    What depends on the rest of the run (whether values go together) is checked when the method runs.

    Args:
        method: The method that the entry is of.
        params: Its parameters in the entry.
        sections: The sections of the run in the entry.

    Raises:
        ConfigError: With the key under ``methods``, what was found and what is allowed.
    """
    known = method.known_keys()
    for key in params:
        if key not in known:
            raise ConfigError(
                f"methods.{method.name}: unknown key {as_found(key)}; there are {', '.join(known) or 'none'}"
                f"{meant(str(key), known)}",
                keys=(("methods", method.name, key),),
            )
    own, asked = recipes.spread(method, params)
    for side in method.params_models():
        _check(side, {key: value for key, value in own.items() if key in side.model_fields}, method, ())
    for key, value in (*asked.items(), *sections.items()):
        annotation = RunConfig.model_fields[key].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            _check(annotation, value, method, (key,))
        elif key == "rounds":
            _check(TypeAdapter[Any](annotation or object), value, method, (key,))
        elif key == "modules":
            for name in value:
                registry.modules_params(str(name), {})


def _check(model: type[BaseModel] | TypeAdapter[Any], value: Any, method: Method, above: tuple[str, ...]) -> None:
    """Check a part of a section: keys that are not there are the business of the rest of the configuration."""
    try:
        model.validate_python(value) if isinstance(model, TypeAdapter) else model.model_validate(value)
    except ValidationError as error:
        wrong = [
            one for one in error.errors() if one["type"] != "missing" and (one["loc"] or isinstance(model, TypeAdapter))
        ]
        if not wrong:
            return
        path = (*above, *map(str, wrong[0]["loc"]))
        dotted = ".".join(("methods", method.name, *path))
        if wrong[0]["type"] == "extra_forbidden" and not isinstance(model, TypeAdapter):
            fields = list(model.model_fields)
            told = f"unknown key; there are {', '.join(fields)}{meant(path[-1], fields)}"
        else:
            told = f"{wrong[0]['msg']}, found {as_found(wrong[0]['input'])}"
        raise ConfigError(f"{shortened(dotted)}: {told}", keys=(("methods", method.name, *path),)) from None
