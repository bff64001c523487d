"""Lists the keys that every configuration has, by dotted name."""

import functools
from collections.abc import Iterable

from fedshift_app.config.sections import MODELS, RunConfig
from fedshift_core import spelling


@functools.cache
def known() -> tuple[str, ...]:
    """Return all dotted keys except parameters of methods, modules and adaptations."""
    keys = list[str]()
    for name in RunConfig.model_fields:
        if name in MODELS:
            keys += [f"{name}.{key}" for key in MODELS[name].model_fields]
        elif name not in ("method", "adapt"):
            keys.append(name)
    return (*keys, "method.name", "adapt.name")


def meant(key: object, others: Iterable[str] = ()) -> str:
    """Return a suggestion for the end of a message about an unknown key; empty if no key is similar.

    A key without its section is found by its last part.

    Args:
        key: The unknown key.
        others: Keys that are allowed in addition to the dotted ones.
    """
    flat = tuple(others)
    if isinstance(key, str) and "." not in key and not spelling.near(key, flat):
        ends = {dotted.rpartition(".")[2]: dotted for dotted in reversed(known()) if "." in dotted}
        words = [ends[end] for end in spelling.near(key.replace("-", "_"), ends)]
        return f"; did you mean {' or '.join(words)}?" if words else ""
    return spelling.meant(key, (*flat, *known()))
