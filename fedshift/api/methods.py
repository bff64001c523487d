"""What there is to know of a method, as an object."""

import functools
from dataclasses import dataclass

from fedshift.run.catalog import methods as catalog
from fedshift.run.catalog.ranges import Parameter
from fedshift_app.config import registry
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found


@dataclass(frozen=True)
class MethodInfo:
    """A method.

    Attributes:
        name: Its name, as ``method=`` takes it.
        title: One line.
        venue: Where it was published.
        group: Its group in lists.
        of: The method that a recipe sets; empty for others.
        private: What never leaves a node.
        approximation: Why it only approximates its paper's method; empty if it does not.
    """

    name: str
    title: str
    venue: str
    group: str
    of: str
    private: str
    approximation: str

    @functools.cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Its parameters by name: default, allowed values, values of papers, description."""
        return {parameter.key: parameter for parameter in catalog.parameters(registry.get(self.name))}

    @property
    def travels(self) -> str:
        """What is sent in addition to the shared weights, in both directions."""
        return registry.travels(registry.get(self.name))

    @property
    def text(self) -> str:
        """All of it as `fedshift methods NAME` prints it."""
        return catalog.described(self.name)


def method(name: str) -> MethodInfo:
    """Return what there is to know of a method.

        >>> fpl = method("fpl")
        >>> fpl.parameters["tau"].default, fpl.parameters["tau"].allowed
        ('0.02', 'above 0')

    Args:
        name: Its name.

    Raises:
        ConfigError: If there is none of that name.
    """
    if not isinstance(name, str):  # a list has no hash
        raise ConfigError(f"method: expected a name, found {as_found(name)}")
    found = registry.get(name)
    of = registry.METHODS[name].of
    return MethodInfo(name, found.title, found.venue, found.group, of, found.private, found.approximation)


def methods() -> list[MethodInfo]:
    """Return all methods that can be used here, those of installed packages and registered ones too.

    >>> [method.name for method in methods()][:1]
    ['fedavg']
    """
    return [method(name) for name in registry.METHODS]
