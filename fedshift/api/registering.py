"""Methods of a notebook or a script: known here at once, and carried to the processes that a run starts."""

import inspect
import re
import shlex
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from fedshift.api.runs import Run
from fedshift.run.arguments import names
from fedshift_app.config import plugins, registry
from fedshift_app.run.files import CONFIG_FILE
from fedshift_clients.base import DomainClient
from fedshift_core import carried, extensions, json_text
from fedshift_core.arguments import as_arguments
from fedshift_core.errors import ConfigError
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import as_found
from fedshift_core.registry import Method
from fedshift_datasets.io.cache import cache_dir
from fedshift_strategies.base import DomainStrategy

FOLDER = "registered"  # next to the cache of images
MOST_NAME = 100  # characters
_BY_NAME = re.compile(r"(__main__|fedshift(_app|_core|_strategies|_clients|_datasets)?)(\.|$)")
#: By name, the file of each method that this process has registered; the method of each file.
_registered: dict[str, Path] = {}
_methods: dict[Path, Method] = {}


def register(name: str, client: Any, strategy: Any, about: Mapping[str, Any]) -> Method:
    """Register a method, see ``fedshift.register``.

    Raises:
        ConfigError: If something is wrong, or cannot be carried to other processes.
    """
    if not isinstance(name, str) or not name.replace("-", "_").isidentifier() or len(name) > MOST_NAME:
        raise ConfigError(f"register: {as_found(name)} is no name of a method: expected letters, digits, '-' and '_'")
    for key, kind, base in (("client", client, DomainClient), ("strategy", strategy, DomainStrategy)):
        if kind is not None and not (isinstance(kind, type) and issubclass(kind, base)):
            raise ConfigError(f"register: {key} is {as_found(kind)}; expected a class of fedshift.{key.title()}")
    given = {"title": name, **about, "client": client or "", "strategy": strategy or ""}
    defaults = {} if given.get("defaults") is None else given["defaults"]
    if not isinstance(defaults, Mapping):
        raise ConfigError(f"register: defaults: expected a mapping of keys to values, found {as_found(defaults)}")
    given |= {"terms": names("register: terms", given.get("terms", ())), "defaults": FrozenDict(defaults)}
    method = as_arguments(Method, {"name": name, **given}, "register", [*Method.model_fields, "node_params"])
    if name in registry.METHODS and Path(registry.METHODS.origin(name)).suffix != carried.SUFFIX:
        raise ConfigError(f"register: {name!r} is the name of a method of {registry.METHODS.origin(name)}")
    _carry(method)
    return registry.get(name)


def _carry(method: Method) -> Path:
    """Write a method with what it refers to now, for this process and others, and return the file."""
    file = carried.write(method.name, [method], _own_modules(method), cache_dir().parent / FOLDER)
    plugins.permit(file)
    extensions.take([method], file)
    _registered[method.name], _methods[file] = file, method
    return file


def _is_changed(file: Path) -> bool:
    """Tell whether a method of this process refers to something else now than its file, such as a global number."""
    method = _methods[file]
    return carried.digest(carried.content_of(method.name, [method], _own_modules(method))) != file.parent.name


def with_files(words: Sequence[str], *, renew: bool = True) -> list[str]:
    """Return the words of a command with the files of the registered methods that they name.

    Args:
        words: The words.
        renew: Write a method again that refers to something else than when it was written.

    Raises:
        ConfigError: If that cannot be carried to other processes, or a run is to go on with what is no longer so.
    """
    _check_resumed(words)
    named = [word.partition("=")[2] for word in words if word.startswith(("method=", "method.name="))]
    methods = [method.strip("\"'") for text in named for method in text.split(",")]
    known = [_registered[method] for method in dict.fromkeys(methods) if method in _registered]
    files = [str(_carry(_methods[file]) if renew and _is_changed(file) else file) for file in known]
    if not files:
        return list(words)
    plugins.allow(files)  # a run that was resumed may have brought an earlier version
    override = shlex.quote(f"plugins={json_text.text_of(files)}")
    others = [word for word in words if not word.startswith("set=")]
    given = [word.removeprefix("set=") for word in words if word.startswith("set=")]
    return [*others, f"set={' '.join([*given, override])}"]


def _check_resumed(words: Sequence[str]) -> None:
    """Refuse to go on in this process with a run whose method refers to something else here by now."""
    for folder in (word.partition("=")[2].strip("\"'") for word in words if word.startswith("resume=")):
        if not (Path(folder).expanduser() / CONFIG_FILE).is_file():
            continue  # a resumed run says what is wrong with it
        for file in map(Path, Run(folder).config.get("plugins") or ()):
            if file in _methods and _is_changed(file):
                raise ConfigError(
                    f"resume: {_methods[file].name!r} refers to other values in this process than when the run began; "
                    "put them back, or resume the run in another process",
                    remedy=f"{plugins.ALLOWED}={shlex.quote(str(file))} fedshift resume {shlex.quote(folder)}",
                )


def _own_modules(method: Method) -> list[ModuleType]:
    """Return the modules of a method's classes that other processes could not import by their names."""
    kinds = [kind for kind in (method.client, method.strategy) if isinstance(kind, type)]
    modules = {kind.__module__ for each in kinds for kind in each.__mro__[:-1]}
    return [module for name in modules if (module := sys.modules.get(name)) is not None and _is_own(module)]


def _is_own(module: ModuleType) -> bool:
    """Tell whether a module is of no package that other processes have; ``__main__`` is by value in any case."""
    file = getattr(module, "__file__", None)
    if file is None or _BY_NAME.match(module.__name__):
        return False
    path = Path(inspect.getabsfile(module))
    return not any(path.is_relative_to(place) for place in sysconfig.get_paths().values())
