"""Turns validation errors of a configuration into messages."""

import re
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shortened
from fedshift_core.spelling import meant

_QUOTED = re.compile(r"'([^']*)'")
#: What pydantic calls a value that is no list, and one that is no mapping, in words of Python's types.
_NO_LIST, _NO_MAPPING = ("tuple_type", "list_type"), ("dict_type", "mapping_type", "model_type")


def explained(error: ValidationError, *section: str, model: type[BaseModel] = RunConfig) -> ConfigError:
    """Return an error of one or two lines with the wrong key, the value found and what is allowed.

    Args:
        error: What pydantic found.
        section: Where in the file it looked.
        model: What the whole file is to be.
    """
    # Unknown keys first: a misspelt key is the reason why the right one is missing.
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    lines = [_problem(p, (*section, *p["loc"]), model) for p in problems[:2]]
    more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
    return ConfigError("\n".join(lines) + more, keys=tuple((*section, *p["loc"]) for p in problems[:2]))


def _problem(problem: Any, loc: tuple[int | str, ...], whole: type[BaseModel]) -> str:
    key = shortened(".".join(str(part) for part in loc)) or "configuration"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        fields = _allowed_fields(loc, whole)
        return f"unknown key {key}; there are {', '.join(fields)}{meant(loc[-1], fields)}"
    if problem["type"] == "missing":
        return f"{key} is missing"
    if problem["type"] == "value_error":
        return f"{key}: {message}"
    if problem["type"] in _NO_LIST:
        message = f"expected a list such as {_list_of(problem['input'], loc, whole)}"
    elif problem["type"] in _NO_MAPPING:
        message = "expected a mapping of keys to values"
    message = message.replace("Tuple should", "list should")
    # pydantic writes the words of a Literal as 'a', 'b' or 'c'.
    words = _QUOTED.findall(problem["ctx"]["expected"]) if problem["type"] == "literal_error" else ()
    return f"{key}: {message}, found {as_found(problem['input'])}{meant(problem['input'], words)}"


def _list_of(found: object, loc: tuple[int | str, ...], whole: type[BaseModel]) -> str:
    """Return a list as a person may have meant it: of the value that was found, as long as the key's list is."""
    word = shortened(str(found)) if isinstance(found, str | int | float) and not isinstance(found, bool) else "A"
    field = _model_of(loc, whole).model_fields.get(str(loc[-1])) if loc else None
    kinds = (field.annotation, *get_args(field.annotation)) if field else ()
    items = [get_args(kind) for kind in kinds if get_origin(kind) is tuple]
    length = next((len(each) for each in items if Ellipsis not in each), 1)
    return f"[{', '.join([word] * length)}]"


def _allowed_fields(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """Return the keys that are allowed at ``loc``, a place in a model."""
    return list(_model_of(loc, model).model_fields)


def _model_of(loc: tuple[int | str, ...], model: type[BaseModel]) -> type[BaseModel]:
    """Return the model that checks the key at ``loc``, a place in a model."""
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        of_field = field.annotation if field else None
        # Of a section that may be absent: the model, not None.
        inner = next((kind for kind in get_args(of_field) if kind is not NoneType), of_field)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return model
