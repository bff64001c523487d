"""Settings of runs that were worked out before, so that tables of finished runs need not import every method again.

A method's code fills in and checks the parameters in a run's settings. Importing that code imports torch, which takes
longer than everything else that a table does. What was worked out is kept in the cache folder, for the same settings
and the same files of FedShift. Nothing is kept or taken where packages or files of others define anything.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pydantic

from fedshift_app.config import files, written
from fedshift_app.config.sections import RunConfig
from fedshift_core import extensions, private_files
from fedshift_core.atomic_io import write_durably
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_datasets import catalog
from fedshift_datasets.io.cache import cache_dir

FILE = "settings.json"
MOST = 20_000  # of what is kept; the oldest goes first
_FOLDERS = ("conf", "datasets", "fedshift", "fedshift_app", "fedshift_core", "clients", "strategies")
_SUFFIXES = (".py", ".yaml")


class _Kept:
    """What is kept, by digest.

    Attributes:
        values: Values that JSON can hold.
        grown: Whether there are more than in the file.
    """

    def __init__(self, stamp: str) -> None:
        self.stamp, self.grown = stamp, False
        self.values: dict[str, Any] = {}
        with suppress(OSError, ValueError, RecursionError):
            content = json.loads((cache_dir() / FILE).read_text(encoding="utf-8"))
            if isinstance(content, dict) and content.get("stamp") == stamp and isinstance(content.get("kept"), dict):
                self.values = content["kept"]

    def save(self) -> None:
        """Write what is kept, if there is more than before; that it cannot be written is no error."""
        if not self.grown:
            return
        values = dict(list(self.values.items())[-MOST:])
        with suppress(OSError, FedShiftError):
            private_files.make_folder(cache_dir())
            text = json.dumps({"stamp": self.stamp, "kept": values})
            write_durably(cache_dir() / FILE, text.encode(), private=True)


_in_use: list[_Kept] = []  # the last one counts


@contextmanager
def used() -> Iterator[None]:
    """Take what is kept, and keep what is worked out, until the block is left."""
    if extensions.has_others():
        yield
        return
    kept = _Kept(_stamp())
    _in_use.append(kept)
    try:
        yield
    finally:
        _in_use.remove(kept)
        kept.save()


def cached(kind: str, given: Any, make: Callable[[], Any]) -> Any:
    """Return what ``make`` returns, or what it returned before for the same ``given``.

    Args:
        kind: What is made.
        given: All that decides it besides FedShift's own files; what JSON cannot hold is not kept.
        make: Makes it; JSON can hold what it returns. What it raises is not kept.
    """
    if not _in_use or extensions.has_others():  # others may have come while a run was read
        return make()
    kept = _in_use[-1]
    try:
        digest = hashlib.sha256(json.dumps([kind, given]).encode()).hexdigest()[:32]
    except (TypeError, ValueError):
        return make()
    if digest not in kept.values:
        value = make()
        if not extensions.has_others():
            kept.values[digest], kept.grown = value, True
        return value
    return kept.values[digest]


def may_keep(layers: Mapping[str, Any]) -> bool:
    """Return whether nothing but FedShift's own files decides what the settings of a run mean."""
    dataset = layers.get("dataset")
    if layers.get("plugins") or not isinstance(dataset, Mapping) or dataset.get("of"):
        return False
    try:
        return catalog.get(str(dataset.get("name"))).own is None
    except ConfigError:
        return False


def settings_of(layers: Mapping[str, Any]) -> tuple[RunConfig, Mapping[str, Any]]:
    """Return the settings of a run, and the same as JSON has them.

    Args:
        layers: The sections under ``resolved``.

    Raises:
        ConfigError: As ``written.read_back``.
    """

    def made() -> Any:
        found.append(written.read_back(layers))
        settings = found[0].model_dump(mode="json")
        return True if json.dumps(settings) == json.dumps(layers) else settings

    found: list[RunConfig] = []
    if not may_keep(layers):
        config = written.read_back(layers)
        return config, config.model_dump(mode="json")
    kept = cached("run", layers, made)
    settings: Mapping[str, Any] = layers if kept is True else kept
    return found[0] if found else RunConfig.model_validate(settings), settings


def _stamp() -> str:
    """Return a digest of the versions and of all files of FedShift, each by its path, size and time."""
    digest = hashlib.sha256(f"{sys.version} {pydantic.VERSION}".encode())
    packages = {Path(__file__).parents[3], *(files.APP / name for name in _FOLDERS)}
    for line in sorted(line for folder in packages for line in _files(str(folder))):
        digest.update(line.encode(errors="replace"))
    return digest.hexdigest()


def _files(folder: str) -> Iterator[str]:
    """Yield a line for each file of a folder and of those in it."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            elif entry.name.endswith(_SUFFIXES):
                stat = entry.stat()
                yield f"{entry.path} {stat.st_size} {stat.st_mtime_ns}\n"
