"""What a key may be, in words, out of the models that check it."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticUndefined

from fedshift_app.config.sections import MODELS, RunConfig
from fedshift_clients.adapt.catalog import ADAPTATIONS
from fedshift_clients.modules.catalog import MODULES
from fedshift_core.registry import params_of

NONE = "-"  # in place of what there is not
MOST_WRITTEN_OUT = 10_000_000  # larger bounds are shown as powers of ten
#: Bounds of a number in JSON Schema, in the order of telling.
_BOUNDS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}
_TYPES = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "null": "null",
    "object": "mapping",
}


class Parameter(NamedTuple):
    """A parameter that a person may set.

    Attributes:
        key: Its name.
        kind: Its type in words.
        default: As YAML writes it.
        bounds: Which values of that type are allowed, in words.
        description: What it means; empty where its model says nothing.
        papers: Values of experiments that stand for a paper's table, with their names, where they set it.
    """

    key: str
    kind: str
    default: str
    bounds: str
    description: str = ""
    papers: str = ""

    @property
    def allowed(self) -> str:
        """Type and values in words, such as ``above 0, at most 1`` or ``dot, cosine``."""
        if self.bounds == NONE:
            return self.kind
        return self.bounds if self.kind in ("number", "word") else f"{self.kind}, {self.bounds}"


def model_of(dotted: str) -> type[BaseModel] | None:
    """Return the model that checks a dotted key of other sections than ``method``; None if there is none."""
    section, _, rest = dotted.rpartition(".")
    if dotted.startswith("modules.") and dotted.count(".") == 2:
        return modules_model(section.partition(".")[2])
    kind = MODELS.get(section) if section else RunConfig
    return kind if kind is not None and rest in kind.model_fields else None


def adaptation_model(name: str) -> type[BaseModel]:
    """Return the model of an adaptation's parameters."""
    return params_of(ADAPTATIONS[name].adaptation, ADAPTATIONS[name].params)


def modules_model(name: str) -> type[BaseModel]:
    """Return the model of the parameters of modules."""
    return params_of(MODULES[name].modules, MODULES[name].params)


def described(model: type[BaseModel], name: str, above: str = "") -> Parameter:
    """Return what a field of a model may be, and what it means; ``above`` is the section of its key."""
    schema, field = _schema(model), model.model_fields[name]
    default = NONE if field.is_required() else as_yaml(None if field.default is PydanticUndefined else field.default)
    kinds, bounds = zip(*_forms(schema["properties"][name], schema.get("$defs", {})), strict=True)
    allowed = " or ".join(filter(None, bounds)) or NONE
    return Parameter(above + name, " or ".join(dict.fromkeys(kinds)), default, allowed, field.description or "")


def as_yaml(value: Any) -> str:
    """Return a value as a person would type it."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(as_yaml, value))}]"
    if isinstance(value, dict):
        value = dict(value)
    return str(yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip())


@functools.cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(schema_generator=_Quiet)


class _Quiet(GenerateJsonSchema):
    """JSON Schema without a warning of defaults that are frozen mappings: they are read from the model."""

    ignored_warning_kinds = GenerateJsonSchema.ignored_warning_kinds | {"non-serializable-default"}


def _forms(schema: Mapping[str, Any], named: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield type and bounds, in words, of each form that a value may have."""
    if "$ref" in schema:
        yield from _forms(named[str(schema["$ref"]).rpartition("/")[2]], named)
    elif "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _forms(part, named)
    elif words := schema.get("enum", [schema["const"]] if "const" in schema else []):
        kind = "whole number" if all(isinstance(word, int) for word in words) else "word"
        yield kind, ", ".join(str(word) or "empty" for word in words)
    elif schema.get("type") == "array":
        parts: Sequence[Mapping[str, Any]] = schema.get("prefixItems") or [schema.get("items") or {}]
        each = (" or ".join(filter(None, (bounds for _, bounds in _forms(part, named)))) for part in parts)
        within = "; ".join(dict.fromkeys(filter(None, each)))
        yield "list", f"each: {within}" if within else ""
    else:
        bounds = ", ".join(f"{word} {_number(schema[key])}" for key, word in _BOUNDS.items() if key in schema)
        yield _TYPES.get(str(schema.get("type")), "anything"), bounds


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) and bound < MOST_WRITTEN_OUT else f"{bound:g}"
