"""Turns validation errors of a configuration into messages."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shortened
from fedshift_core.spelling import meant

_QUOTED = re.compile(r"'([^']*)'")


def explained(error: ValidationError, *section: str, model: type[BaseModel] = RunConfig) -> ConfigError:
    """Return an error of one or two lines with the wrong key, the value found and what is allowed.

    Args:
        error: What pydantic found.
        section: Where in the model it looked.
        model: What the whole file is to be.
    """
    # Unknown keys first: a misspelt key is the reason why the right one is missing.
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    lines = [_problem(p, (*section, *p["loc"]), model) for p in problems[:2]]
    more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
    return ConfigError("\n".join(lines) + more, keys=tuple((*section, *p["loc"]) for p in problems[:2]))


@contextmanager
def explaining(*section: str) -> Iterator[None]:
    """Turn an error of pydantic into one for a person, see :func:`explained`."""
    try:
        yield
    except ValidationError as error:
        raise explained(error, *section) from None


def _problem(problem: Any, loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    key, kind, found = shortened(".".join(map(str, loc))) or "configuration", problem["type"], problem["input"]
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        # Of a section that may be absent: the model, not None.
        kinds = (*get_args(field.annotation), field.annotation) if field else ()
        inner = next((each for each in kinds if each is not NoneType), None)
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else model
    if kind == "extra_forbidden":
        return f"unknown key {key}; there are {', '.join(model.model_fields)}{meant(loc[-1], model.model_fields)}"
    if kind == "missing":
        return f"{key} is missing"
    message = problem["msg"].removeprefix("Value error, ").replace("Tuple should", "list should")
    if kind == "value_error":
        return f"{key}: {message}"
    if kind in ("tuple_type", "list_type"):
        message = "expected a list such as [A]"
    elif kind in ("dict_type", "mapping_type", "model_type"):
        message = "expected a mapping of keys to values"
    # pydantic writes the words of a Literal as 'a', 'b' or 'c'.
    words = _QUOTED.findall(problem["ctx"]["expected"]) if kind == "literal_error" else ()
    return f"{key}: {message}, found {as_found(found)}{meant(found, words)}"
