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
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Generic, Protocol, TypeVar

from fedshift_core import carried
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, some
from fedshift_core.spelling import meant

OURS = "fedshift"  # origin of FedShift's own things
#: Names in a message about an unknown one; `fedshift methods` and the like list all.
MOST_LISTED = 16
#: Names that FedShift's packages had once; Hugging Face's library has one of them.
BEFORE = ("datasets", "clients", "strategies")


class Named(Protocol):
    """A thing with a name."""

    @property
    def name(self) -> str:
        """The name of the thing in a configuration."""


T = TypeVar("T", bound=Named)
F = TypeVar("F")


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
                known = some(tuple(self), MOST_LISTED)
                raise ConfigError(f"unknown {self.kind} {as_found(name)}; there are {known}{meant(name, self)}")
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
        return str(self._files[name][1]) if name in self._files else _package(self._claims()[name][0])

    def package_digest(self, name: str) -> str:
        """Return the start of the SHA-256 of the code of the package that offers a thing; empty for a library's."""
        if name not in self._claims():
            return ""
        spec = importlib.util.find_spec(self._claims()[name][0].module.partition(".")[0])
        places = spec.submodule_search_locations or [] if spec is not None else []
        files = sorted(file for place in places for file in Path(place).rglob("*") if file.suffix in (".py", ".yaml"))
        return carried.digest(b"".join(file.name.encode() + file.read_bytes() for file in files))

    def problems(self) -> list[str]:
        """Return one line for each package whose offer cannot be used."""
        shadowed = [
            f"package {_package(point)} claims the {self.kind} {name!r}, which FedShift itself has: ignored"
            for name, points in _offers(self.group).items()
            if name in self._ours
            for point in points
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

    def takes(self, thing: object) -> bool:
        """Return whether an object is of this kind."""
        return isinstance(thing, self._of())

    def _claims(self) -> dict[str, list[EntryPoint]]:
        """Return the offers of packages by the name of the thing."""
        return {name: points for name, points in _offers(self.group).items() if name not in self._ours}

    def _problem(self, name: str) -> str:
        try:
            self[name]
        except ConfigError as error:
            return str(error)
        return ""

    def _load(self, name: str) -> T:
        point, *others = self._claims()[name]
        package, what = _package(point), f"the {self.kind} {name!r}"
        if others:
            packages = " and ".join(map(_package, (point, *others)))
            raise ConfigError(f"packages {packages} both claim {what}: neither is used")
        try:
            thing = point.load()
        except Exception as error:  # a package's code may raise any type
            raise ConfigError(f"package {package}, which has {what}, cannot be imported: {_reason(error)}") from None
        if not isinstance(thing, self._of()) or thing.name != name:
            kind = self._of().__name__
            found = f"{kind} {thing.name!r}" if self.takes(thing) else type(thing).__name__
            raise ConfigError(
                f"package {package}: the entry point {name!r} of {self.group} must be a {kind} of that name, found a "
                f"{found}"
            )
        return thing


_REGISTRIES: list[Registry[Any]] = []


def problems() -> list[str]:
    """Return one line for each offer of a package that cannot be used, of all kinds."""
    return [problem for registry in _REGISTRIES for problem in registry.problems()]


def offered(group: str) -> list[str]:
    """Return the names that packages offer in a group, whether they can be used or not."""
    return sorted(_offers(group))


@functools.cache
def _offers(group: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a group by name, in the order of packages. A package twice on the path counts once."""
    points: dict[tuple[str, str], EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=group):
        points.setdefault((point.dist.name if point.dist is not None else "", point.name), point)
    by_name: dict[str, list[EntryPoint]] = {}
    for point in sorted(points.values(), key=_package):
        by_name.setdefault(point.name, []).append(point)
    return by_name


def _package(point: EntryPoint) -> str:
    """Return the name and the version of the package of an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "(unknown)"


def forget() -> None:
    """Clear the caches of packages and files, for tests."""
    _offers.cache_clear()
    _loaded.clear()
    for registry in _REGISTRIES:
        registry._found.clear()
        registry._files.clear()


def load_file(file: Path) -> None:
    """Run a user's own Python file and register every object of a known kind at its top level.

    A file whose content this process has run is not run again; that of a changed one takes the place of the earlier.

    Raises:
        ConfigError: If it cannot be read or run, defines no such object or two of one name, or claims a name in use.
    """
    known = _loaded.get(file)
    if known is None or file.suffix != carried.SUFFIX:  # carried ones do not change
        digest = carried.digest(content := _content(file))
        if known is None or known[0] != digest:
            objects = carried.read(file) if file.suffix == carried.SUFFIX else vars(_module(file, content)).values()
            _loaded[file] = digest, tuple({id(thing): thing for thing in objects}.values())
    found = [(registry, thing) for thing in _loaded[file][1] for registry in _REGISTRIES if registry.takes(thing)]
    if not found:
        kinds = ", ".join(registry._of().__name__ for registry in _REGISTRIES)
        raise ConfigError(f"plugins: {file} defines nothing that FedShift knows; it looks for objects of {kinds}")
    for registry in _REGISTRIES:
        registry._files = {name: held for name, held in registry._files.items() if held[1] != file}
    for registry, thing in found:
        registry.add(thing, file)
    if known not in (None, _loaded[file]):
        for clear in _made_of_files:
            clear()


def take(things: Sequence[Any], file: Path) -> None:
    """Register objects of this process, whose copies for other processes are in a file.

    Raises:
        ConfigError: If one claims a name in use.
    """
    _loaded[file] = carried.digest(_content(file)), tuple(things)
    load_file(file)


def cleared_on_change(cached: F) -> F:
    """Return a cached function whose cache is cleared when a changed file takes the place of the earlier one."""
    _made_of_files.append(cached.cache_clear)  # type: ignore[attr-defined]
    return cached


#: Clear what was made of things of files.
_made_of_files: list[Callable[[], None]] = []
#: The start of the SHA-256 of what defines them, and the objects of each of a user's own files in this process.
_loaded: dict[Path, tuple[str, tuple[Any, ...]]] = {}


def file_digest(file: Path) -> str:
    """Return the start of the SHA-256 of a user's own file as this process has run it, or as it is if it has not.

    Raises:
        ConfigError: If it cannot be read.
    """
    return _loaded[file][0] if file in _loaded else carried.digest(_content(file))


def _content(file: Path) -> bytes:
    if file.suffix not in {".py", carried.SUFFIX}:
        raise ConfigError(f"plugins: {file} is not a Python file (.py)")
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"plugins: cannot read {file}: {error.strerror}") from None


def _reason(error: Exception) -> str:
    """Return an error of somebody else's code in one line; of an import of an old name of ours with the new one."""
    reason = carried.reason_of(error)
    root = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    return f"{reason}; FedShift's package {root} is now called fedshift_{root}" if root in BEFORE else reason


class _ContentLoader(SourceFileLoader):
    """Runs a content of a file: bytecode next to it goes by seconds, and may be that of an earlier content."""

    content: bytes

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.content, self.path)
        return code


def _module(file: Path, content: bytes) -> ModuleType:
    name = f"fedshift_file_{file.stem}_{carried.digest(content)}"
    loader = _ContentLoader(name, str(file))
    loader.content = content
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # a dataclass looks its module up
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"plugins: {file} cannot be run: {_reason(error)}") from None
    return module
