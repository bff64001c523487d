"""What a change of Flower from outside rests on: source that is as it was read, and modules with other attributes."""

import inspect
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

#: By module and function or class, the texts that its source must contain.
Shapes = Mapping[tuple[str, str], Sequence[str]]


def missing(shapes: Shapes, *modules: str) -> tuple[str, str] | None:
    """Return what of these modules has another source, and the first text that it lacks; None if all are as read."""
    for (place, name), parts in shapes.items():
        if place in modules:
            found = getattr(import_module(place), name, None)
            text = "" if found is None else inspect.getsource(found)
            for part in parts:
                if found is None or part not in text:
                    return f"{place}.{name}", part
    return None


class Other:
    """A module with some other attributes, for a module of Flower that uses it.

    Args:
        module: The module.
        changed: Its other attributes, by name.
    """

    def __init__(self, module: ModuleType, **changed: Any) -> None:
        self._module = module
        vars(self).update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
