"""Describes the allowed values of keys, from the models that check them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from clients.adapt.catalog import ADAPTATIONS
from clients.modules.catalog import MODULES
from fedshift_app.config.sections import RunConfig
from fedshift_core.registry import imported

#: Bounds of a number in JSON Schema, in the order of the text.
_BOUNDS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}
_KINDS = {"boolean": "true, false", "integer": "a whole number", "number": "a number", "string": "a word"}


def model_of(dotted: str) -> tuple[type[BaseModel], str] | None:
    """Return the model that checks a dotted key of other sections than ``method``, and the key's name in it."""
    *sections, last = dotted.split(".")
    if sections[:1] == ["modules"] and len(sections) == 2:
        return imported(MODULES[sections[1]].modules).params_model, last
    model: type[BaseModel] = RunConfig
    for section in sections:
        inner = model.model_fields[section].annotation if section in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        model = inner
    return (model, last) if last in model.model_fields else None


def adaptation_model(name: str) -> type[BaseModel]:
    """Return the model of an adaptation's parameters."""
    model: type[BaseModel] = imported(ADAPTATIONS[name].adaptation).params_model
    return model


def allowed(model: type[BaseModel], name: str) -> str:
    """Return a field's allowed values as text, such as ``above 0, at most 1`` or ``dot, cosine``."""
    schema = model.model_json_schema()
    return _schema_text(schema["properties"][name], schema.get("$defs", {}))


def default(model: type[BaseModel], name: str) -> Any:
    """Return the default of a field; None if it has none."""
    value = model.model_fields[name].default
    return None if value is PydanticUndefined else value


def _schema_text(schema: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _schema_text(named[str(schema["$ref"]).rpartition("/")[2]], named)
    if "anyOf" in schema:
        return " or ".join(_schema_text(option, named) for option in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "null":
        return "null"
    if schema.get("type") == "array":
        return f"a list ({_items(schema, named)})"
    if schema.get("type") == "object":
        return "a mapping"
    bounds = ", ".join(f"{word} {schema[key]:g}" for key, word in _BOUNDS.items() if key in schema)
    kind = _KINDS.get(str(schema.get("type")), "anything")
    if not bounds:
        return kind
    return f"whole, {bounds}" if schema["type"] == "integer" else bounds


def _items(schema: Mapping[str, Any], named: Mapping[str, Any]) -> str:
    parts: Sequence[Mapping[str, Any]] = schema.get("prefixItems") or [schema.get("items") or {}]
    return "; ".join(dict.fromkeys(_schema_text(part, named) for part in parts))
