"""Things of one kind by name: FedShift's own, those of installed packages, those of a user's own files.

A package offers a thing by an entry point of the kind's group, whose name is the thing's and whose object is it (a
:class:`~fedshift_core.registry.Method`, a ``Dataset``, ...). What is wrong with one package is a line that names it;
all others still work.

Specification: https://packaging.python.org/en/latest/specifications/entry-points/
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from fedshift_core import __version__
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.spelling import meant

OURS = "fedshift"  # where what FedShift itself brings comes from
MOST_REASON = 200  # characters of a package's own error that are shown


class Named(Protocol):
    """What can be asked for by name."""

    @property
    def name(self) -> str:
        """The name by which a configuration asks for it."""


T = TypeVar("T", bound=Named)


@dataclass(frozen=True)
class Offer:
    """An entry point and the package that it is of."""

    point: EntryPoint
    package: str  # name and version


class Registry(Mapping[str, T], Generic[T]):
    """All things of one kind by name: ours first, then those of packages and files, each by name.

    Looking a thing up imports its package alone.
    """

    def __init__(self, kind: str, group: str, of: Callable[[], type[T]], ours: Mapping[str, T]) -> None:
        """A registry.

        Args:
            kind: What messages call one thing, such as ``method``.
            group: The group of entry points.
            of: Gives the type of all things.
            ours: Those of FedShift itself, in the order of lists.
        """
        self.kind, self.group = kind, group
        self._of, self._ours = of, ours
        self._files: dict[str, tuple[T, Path]] = {}
        self._found: dict[str, T] = {}
        _REGISTRIES.append(self)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of ours, then of all others that can be used."""
        yield from self._ours
        others = sorted({*self._claims(), *self._files} - set(self._ours))
        yield from (name for name in others if not self._problem(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._ours or name in self._files or name in self._claims()

    def __getitem__(self, name: str) -> T:
        """Return a thing by name.

        Raises:
            ConfigError: If there is none, or what offers it cannot be used.
        """
        if name in self._ours:
            return self._ours[name]
        if name in self._files:
            return self._files[name][0]
        if name not in self._found:
            if name not in self._claims():
                raise ConfigError(
                    f"unknown {self.kind} {as_found(name)}; there are {', '.join(self)}{meant(name, self)}"
                )
            self._found[name] = self._load(name)
        return self._found[name]

    def named(self, name: str, key: str) -> T:
        """As ``[name]``, for what a configuration asks for under a key.

        Raises:
            ConfigError: With the key.
        """
        try:
            return self[name]
        except ConfigError as error:
            raise error.under(key) from None

    def origin(self, name: str) -> str:
        """Return where a thing comes from: ``fedshift``, a package with its version, or a file."""
        if name in self._ours:
            return OURS
        return str(self._files[name][1]) if name in self._files else self._claims()[name][0].package

    def problems(self) -> list[str]:
        """Return one line for each package whose offer cannot be used."""
        shadowed = [
            f"package {offer.package} claims the {self.kind} {name!r}, which FedShift itself has: left out"
            for name, offers in self._claims(with_ours=True).items()
            if name in self._ours
            for offer in offers
        ]
        return shadowed + [problem for name in self._claims() if (problem := self._problem(name))]

    def add(self, thing: T, file: Path) -> None:
        """Take a thing of a user's own file.

        Raises:
            ConfigError: If something else has its name.
        """
        name = thing.name
        if name in self._ours or name in self._claims() or self._files.get(name, (None, file))[1] != file:
            raise ConfigError(f"plugins: {file} claims the {self.kind} {name!r}, which {self.origin(name)} has")
        self._files[name] = thing, file

    def takes(self, thing: object) -> bool:
        """Tell whether something is of this kind."""
        return isinstance(thing, self._of())

    def _claims(self, *, with_ours: bool = False) -> dict[str, list[Offer]]:
        """Return who offers what by an entry point, by name."""
        found: dict[str, list[Offer]] = {}
        for offer in _offers(self.group):
            if with_ours or offer.point.name not in self._ours:
                found.setdefault(offer.point.name, []).append(offer)
        return found

    def _problem(self, name: str) -> str:
        if name in self._files or name in self._found:
            return ""
        try:
            self._found[name] = self._load(name)
        except ConfigError as error:
            return str(error)
        return ""

    def _load(self, name: str) -> T:
        offers = self._claims()[name]
        if len(offers) > 1:
            both = " and ".join(offer.package for offer in offers)
            raise ConfigError(f"packages {both} both claim the {self.kind} {name!r}: neither is used")
        offer = offers[0]
        if misfit := _misfit(offer.point.dist):
            raise ConfigError(f"package {offer.package}, which has the {self.kind} {name!r}, {misfit}")
        try:
            thing = offer.point.load()
        except Exception as error:  # whatever a package's own code raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_REASON]
            raise ConfigError(
                f"package {offer.package}, which has the {self.kind} {name!r}, cannot be imported: {reason}"
            ) from None
        if not isinstance(thing, self._of()) or thing.name != name:
            found = f"a {self._of().__name__} {thing.name!r}" if self.takes(thing) else f"a {type(thing).__name__}"
            raise ConfigError(
                f"package {offer.package}: the entry point {name!r} of {self.group} must be a "
                f"{self._of().__name__} of that name, found {found}"
            )
        return thing


_REGISTRIES: list[Registry[Any]] = []


def problems() -> list[str]:
    """Return one line for each offer of a package that cannot be used, of all kinds."""
    return [problem for registry in _REGISTRIES for problem in registry.problems()]


@functools.cache
def _offers(group: str) -> tuple[Offer, ...]:
    """Return the entry points of a group, in the order of packages; a package that is on the path twice counts once."""
    found: dict[tuple[str, str], Offer] = {}
    for point in importlib.metadata.entry_points(group=group):
        dist = point.dist
        package = f"{dist.name} {dist.version}" if dist is not None else "(unknown)"
        found.setdefault((dist.name if dist is not None else "", point.name), Offer(point, package))
    return tuple(sorted(found.values(), key=lambda offer: (offer.package, offer.point.name)))


def forget() -> None:
    """Look for packages anew, and let go of what files brought: for tests."""
    _offers.cache_clear()
    _module.cache_clear()
    for registry in _REGISTRIES:
        registry._found.clear()
        registry._files.clear()


def _misfit(dist: Distribution | None) -> str:
    """Return what is wrong with the version of FedShift that a package asks for; empty if nothing is."""
    for text in (dist.requires if dist is not None else None) or ():
        try:
            asked = Requirement(text)
        except InvalidRequirement:
            continue
        if canonicalize_name(asked.name) == OURS and not asked.specifier.contains(__version__, prereleases=True):
            return f"is for fedshift{asked.specifier}; this is fedshift {__version__}"
    return ""


def load_file(file: Path) -> None:
    """Run a user's own Python file and take what it defines: every object of a known kind at its top level.

    Raises:
        ConfigError: If it cannot be read or run, defines nothing, or claims a name that is taken.
    """
    module = _module(file)
    found = 0
    for thing in vars(module).values():
        for registry in _REGISTRIES:
            if registry.takes(thing):
                registry.add(thing, file)
                found += 1
    if not found:
        kinds = ", ".join(registry._of().__name__ for registry in _REGISTRIES)
        raise ConfigError(f"plugins: {file} defines nothing that FedShift knows; it looks for objects of {kinds}")


def file_digest(file: Path) -> str:
    """Return the start of the SHA-256 of a user's own file.

    Raises:
        ConfigError: If it cannot be read.
    """
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise ConfigError(f"plugins: cannot read {file}: {error.strerror}") from None


@functools.cache
def _module(file: Path) -> ModuleType:
    if file.suffix != ".py":
        raise ConfigError(f"plugins: {file} is no Python file (.py)")
    name = f"fedshift_file_{file.stem}_{file_digest(file)}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks its module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_REASON]
        raise ConfigError(f"plugins: {file} cannot be run: {reason}") from None
    return module
