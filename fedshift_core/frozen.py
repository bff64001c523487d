"""Mappings that can be dictionary keys: a configuration is the key of the results computed from it."""

from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import AfterValidator

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that never changes and has a hash; lists in it become tuples, and dicts become frozen.

    Raises:
        TypeError: On a change, or if a value without a hash is hashed.
    """

    def __init__(self, content: Mapping[K, V]) -> None:
        super().__init__({key: frozen(value) for key, value in content.items()})

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a configuration cannot change; make a new one")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type["FrozenDict[K, V]"], tuple[dict[K, V]]]:
        """Pickle by content: the default way would set items."""
        return FrozenDict, (dict(self),)

    def __copy__(self) -> "FrozenDict[K, V]":
        return self

    def __deepcopy__(self, _: Any) -> "FrozenDict[K, V]":
        return self


def frozen(value: Any) -> Any:
    """Return a value with tuples and frozen dicts in place of lists and dicts."""
    if isinstance(value, str | int | float | None):  # most are, and the test for mappings takes longer
        return value
    if isinstance(value, Mapping):
        return FrozenDict(value)
    return tuple(frozen(part) for part in value) if isinstance(value, list | tuple) else value


#: A section with the own keys of a method, a module or an adaptation.
Section = Annotated[dict[str, Any], AfterValidator(FrozenDict)]
