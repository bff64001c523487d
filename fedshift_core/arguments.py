"""Arguments of a Python call, checked by a pydantic model, with errors that name them."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.spelling import meant

Model = TypeVar("Model", bound=BaseModel)


def as_arguments(model: type[Model], given: Mapping[str, Any], whose: str, known: Collection[str] = ()) -> Model:
    """Return arguments as a model has them.

    Args:
        model: Their names, types and ranges.
        given: What was given, by name.
        whose: What takes them, for the message.
        known: Those that may be given; by default all.

    Raises:
        ConfigError: With the first that is unknown, missing or wrong.
    """
    known = known or model.model_fields
    if unknown := next((name for name in given if name not in known), None):
        raise ConfigError(f"{whose}: unknown argument {unknown}; there are {', '.join(known)}{meant(unknown, known)}")
    try:
        return model(**given)
    except ValidationError as error:
        problem = error.errors()[0]
    name, text = ".".join(map(str, problem["loc"])), f"{problem['msg']}, found {as_found(problem['input'])}"
    if problem["type"] == "missing":
        raise ConfigError(f"{whose}: {name} is missing")
    if problem["type"] == "value_error":  # the model's own words
        text = str(problem["ctx"]["error"])
    raise ConfigError(f"{whose}: {f'{name}: ' if name else ''}{text}")
