"""All keys of a configuration that are always there, by dotted name."""

import functools
from collections.abc import Iterable, Iterator

from pydantic import BaseModel

from fedshift_app.config.sections import RunConfig
from fedshift_core import spelling


@functools.cache
def known() -> tuple[str, ...]:
    """Return all dotted keys, but for parameters of methods, modules and adaptations, which depend on their names."""
    return tuple(_within(RunConfig, ""))


def _within(model: type[BaseModel], above: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _within(field.annotation, f"{above}{name}.")
        elif name not in ("method", "adapt"):
            yield f"{above}{name}"
    if not above:
        yield from ("method.name", "adapt.name")


def meant(key: object, others: Iterable[str] = ()) -> str:
    """Return the end of a message about an unknown key: what may have been meant; empty where nothing is like it.

    A key without its section is found by its last part.

    Args:
        key: What was given.
        others: Keys that may stand beside the dotted ones.
    """
    flat = tuple(others)
    if isinstance(key, str) and "." not in key and not spelling.near(key, flat):
        ends = {one.rpartition(".")[2]: one for one in reversed(known()) if "." in one}
        words = [ends[end] for end in spelling.near(key.replace("-", "_"), ends)]
        return f"; did you mean {' or '.join(words)}?" if words else ""
    return spelling.meant(key, (*flat, *known()))
