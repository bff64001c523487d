"""Registries of things of one kind by name: FedShift's own, those of installed packages and of a user's files.

A package offers a thing by an entry point of the kind's group, with the name and the object of the thing (a
:class:`~fedshift_core.registry.Method`, a ``Dataset``, ...). A faulty package gives a line that names it; all others
still work.

Specification: https://packaging.python.org/en/latest/specifications/entry-points/
"""

import functools
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Generic, Protocol, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from fedshift_core import __version__, carried
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, some
from fedshift_core.spelling import meant

OURS = "fedshift"  # origin of FedShift's own things
MOST_REASON = 200  # characters of a package's own error in a message
#: Names that FedShift's packages had once; Hugging Face's library has one of them.
BEFORE = ("datasets", "clients", "strategies")


class Named(Protocol):
    """A thing with a name."""

    @property
    def name(self) -> str:
        """The name of the thing in a configuration."""


T = TypeVar("T", bound=Named)


class Cached(Protocol):
    """A function with a cache."""

    def cache_clear(self) -> None:
        """Clear it."""


C = TypeVar("C", bound=Cached)
#: Names in a message about an unknown one; `fedshift methods` and the like list all.
MOST_LISTED = 16


@dataclass(frozen=True)
class Offer:
    """An entry point and its package."""

    point: EntryPoint
    package: str  # name and version


class Registry(Mapping[str, T], Generic[T]):
    """All things of one kind by name: FedShift's own first, then those of packages and files, sorted by name.

    A look-up imports only the package of the thing.
    """

    def __init__(self, kind: str, group: str, of: Callable[[], type[T]], ours: Mapping[str, T]) -> None:
        """Make a registry.

        Args:
            kind: Name of one thing in messages, such as ``method``.
            group: The group of entry points.
            of: Function that returns the type of all things.
            ours: FedShift's own things, in the order of lists.
        """
        self.kind, self.group = kind, group
        self._of, self._ours = of, ours
        self._files: dict[str, tuple[T, Path]] = {}
        self._found: dict[str, T] = {}
        _REGISTRIES.append(self)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of FedShift's own things, then of all other usable ones."""
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
            ConfigError: If there is no such thing, or its package cannot be used.
        """
        if name in self._ours:
            return self._ours[name]
        if name in self._files:
            return self._files[name][0]
        if name not in self._found:
            if name not in self._claims():
                raise ConfigError(
                    f"unknown {self.kind} {as_found(name)}; there are {some(tuple(self), MOST_LISTED)}"
                    f"{meant(name, self)}"
                )
            self._found[name] = self._load(name)
        return self._found[name]

    def named(self, name: str, key: str) -> T:
        """Return a thing by name, as a configuration's key requests it.

        Raises:
            ConfigError: With the key.
        """
        try:
            return self[name]
        except ConfigError as error:
            raise error.under(key) from None

    def origin(self, name: str) -> str:
        """Return the origin of a thing: ``fedshift``, a package with its version, or a file."""
        if name in self._ours:
            return OURS
        return str(self._files[name][1]) if name in self._files else self._claims()[name][0].package

    def package_digest(self, name: str) -> str:
        """Return the start of the SHA-256 of the code of the package that offers a thing; empty for a library's."""
        if name not in self._claims():
            return ""
        spec = importlib.util.find_spec(self._claims()[name][0].point.module.partition(".")[0])
        places = spec.submodule_search_locations or [] if spec is not None else []
        files = sorted(file for place in places for file in Path(place).rglob("*") if file.suffix in (".py", ".yaml"))
        return carried.digest(b"".join(file.name.encode() + file.read_bytes() for file in files))

    def problems(self) -> list[str]:
        """Return one line for each package whose offer cannot be used."""
        shadowed = [
            f"package {offer.package} claims the {self.kind} {name!r}, which FedShift itself has: ignored"
            for name, offers in self._claims(with_ours=True).items()
            if name in self._ours
            for offer in offers
        ]
        return shadowed + [problem for name in self._claims() if (problem := self._problem(name))]

    def add(self, thing: T, file: Path) -> None:
        """Add a thing of a user's own file.

        Raises:
            ConfigError: If another thing has its name.
        """
        name = thing.name
        held, before = self._files.get(name, (thing, file))
        if before == file and held is not thing:
            raise ConfigError(f"plugins: {file} defines two of the {self.kind} {name!r}; give one another name")
        again = before.suffix == file.suffix == carried.SUFFIX  # registered again, as a notebook's cell is run again
        if name in self._ours or name in self._claims() or (before != file and not again):
            raise ConfigError(f"plugins: {file} claims the {self.kind} {name!r}, which {self.origin(name)} has")
        self._files[name] = thing, file

    def drop(self, file: Path) -> None:
        """Take away all things of a user's own file."""
        self._files = {name: held for name, held in self._files.items() if held[1] != file}

    def takes(self, thing: object) -> bool:
        """Return whether an object is of this kind."""
        return isinstance(thing, self._of())

    def _claims(self, *, with_ours: bool = False) -> dict[str, list[Offer]]:
        """Return the offers of packages by the name of the thing."""
        offers: dict[str, list[Offer]] = {}
        for offer in _offers(self.group):
            if with_ours or offer.point.name not in self._ours:
                offers.setdefault(offer.point.name, []).append(offer)
        return offers

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
            packages = " and ".join(offer.package for offer in offers)
            raise ConfigError(f"packages {packages} both claim the {self.kind} {name!r}: neither is used")
        offer = offers[0]
        if problem := _misfit(offer.point.dist):
            raise ConfigError(f"package {offer.package}, which has the {self.kind} {name!r}, {problem}")
        try:
            thing = offer.point.load()
        except Exception as error:  # a package's code may raise any type
            reason = _reason(error)
            raise ConfigError(
                f"package {offer.package}, which has the {self.kind} {name!r}, cannot be imported: {reason}"
            ) from None
        if not isinstance(thing, self._of()) or thing.name != name:
            description = (
                f"a {self._of().__name__} {thing.name!r}" if self.takes(thing) else f"a {type(thing).__name__}"
            )
            raise ConfigError(
                f"package {offer.package}: the entry point {name!r} of {self.group} must be a "
                f"{self._of().__name__} of that name, found {description}"
            )
        return thing


_REGISTRIES: list[Registry[Any]] = []


def problems() -> list[str]:
    """Return one line for each offer of a package that cannot be used, of all kinds."""
    return [problem for registry in _REGISTRIES for problem in registry.problems()]


def offered(group: str) -> list[str]:
    """Return the names that packages offer in a group, whether they can be used or not."""
    return sorted({offer.point.name for offer in _offers(group)})


def has_others() -> bool:
    """Return whether packages or a user's files define anything, in whatever kind."""
    return any(registry._files or _offers(registry.group) for registry in _REGISTRIES)


@functools.cache
def _offers(group: str) -> tuple[Offer, ...]:
    """Return the entry points of a group in the order of packages. A package twice on the path counts once."""
    offers: dict[tuple[str, str], Offer] = {}
    for point in importlib.metadata.entry_points(group=group):
        dist = point.dist
        package = f"{dist.name} {dist.version}" if dist is not None else "(unknown)"
        offers.setdefault((dist.name if dist is not None else "", point.name), Offer(point, package))
    return tuple(sorted(offers.values(), key=lambda offer: (offer.package, offer.point.name)))


def forget() -> None:
    """Clear the caches of packages and files, for tests."""
    _offers.cache_clear()
    _loaded.clear()
    for registry in _REGISTRIES:
        registry._found.clear()
        registry._files.clear()


def _misfit(dist: Distribution | None) -> str:
    """Return a text if a package requires another version of FedShift; otherwise an empty text."""
    for text in (dist.requires if dist is not None else None) or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) == OURS and not requirement.specifier.contains(
            __version__, prereleases=True
        ):
            return f"is for fedshift{requirement.specifier}; this is fedshift {__version__}"
    return ""


def load_file(file: Path) -> None:
    """Run a user's own Python file and register every object of a known kind at its top level.

    A file whose content this process has run is not run again; that of a changed one takes the place of the earlier.

    Raises:
        ConfigError: If it cannot be read or run, defines no such object or two of one name, or claims a name in use.
    """
    known, things = _loaded.get(file), _things(file)
    found = [(registry, thing) for thing in things for registry in _REGISTRIES if registry.takes(thing)]
    if not found:
        kinds = ", ".join(registry._of().__name__ for registry in _REGISTRIES)
        raise ConfigError(f"plugins: {file} defines nothing that FedShift knows; it looks for objects of {kinds}")
    for registry in _REGISTRIES:
        registry.drop(file)
    for registry, thing in found:
        registry.add(thing, file)
    if known is not None and known != _loaded[file]:
        for clear in _made_of_files:
            clear()


def take(things: Sequence[Any], file: Path) -> None:
    """Register objects of this process, whose copies for other processes are in a file.

    Raises:
        ConfigError: If one claims a name in use.
    """
    _loaded[file] = _Loaded(carried.digest(_content(file)), tuple(things))
    load_file(file)


def cleared_on_change(cached: C) -> C:
    """Return a cached function whose cache is cleared when a changed file takes the place of the earlier one."""
    _made_of_files.append(cached.cache_clear)
    return cached


#: Clear what was made of things of files.
_made_of_files: list[Callable[[], None]] = []


@dataclass(frozen=True)
class _Loaded:
    """The objects of a user's own file in this process, and the start of the SHA-256 of what defines them."""

    digest: str
    things: tuple[Any, ...]


_loaded: dict[Path, _Loaded] = {}


def _things(file: Path) -> tuple[Any, ...]:
    """Return the objects of a file, each once; of carried ones, which do not change, as they were read first."""
    known = _loaded.get(file)
    if file.suffix == carried.SUFFIX:
        if known is None:
            known = _Loaded(carried.digest(_content(file)), tuple(carried.read(file)))
    else:
        content = _content(file)
        if known is None or known.digest != carried.digest(content):
            objects = vars(_module(file, content)).values()
            known = _Loaded(carried.digest(content), tuple({id(thing): thing for thing in objects}.values()))
    _loaded[file] = known
    return known.things


def file_digest(file: Path) -> str:
    """Return the start of the SHA-256 of a user's own file as this process has run it, or as it is if it has not.

    Raises:
        ConfigError: If it cannot be read.
    """
    return _loaded[file].digest if file in _loaded else carried.digest(_content(file))


def _content(file: Path) -> bytes:
    if file.suffix not in {".py", carried.SUFFIX}:
        raise ConfigError(f"plugins: {file} is not a Python file (.py)")
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"plugins: cannot read {file}: {error.strerror}") from None


def _reason(error: Exception) -> str:
    """Return an error of somebody else's code in one line; of an import of an old name of ours with the new one."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_REASON]
    root = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    return f"{reason}; FedShift's package {root} is now called fedshift_{root}" if root in BEFORE else reason


class _ContentLoader(SourceFileLoader):
    """Runs a content of a file: bytecode next to it goes by seconds, and may be that of an earlier content."""

    def __init__(self, name: str, file: Path, content: bytes) -> None:
        super().__init__(name, str(file))
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._content, self.path)
        return code


def _module(file: Path, content: bytes) -> ModuleType:
    name = f"fedshift_file_{file.stem}_{carried.digest(content)}"
    loader = _ContentLoader(name, file, content)
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks its module up
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        reason = _reason(error)
        raise ConfigError(f"plugins: {file} cannot be run: {reason}") from None
    return module
