"""A person's own classes from a notebook or a script, in a file that other processes of that person load.

A class of ``__main__`` can be imported by no other process, so it is written by value: with its code, and what its code
refers to. Reading such a file runs what it says, as importing a ``.py`` file does. It is read only where a user's own
Python files are run: if the process's own environment names it (``fedshift_app.config.plugins``).
"""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from fedshift_core import private_files
from fedshift_core.atomic_io import write_durably
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown

SUFFIX = ".carried"
MOST_REASON = 200  # characters of another's own error in a message


def write(name: str, things: Sequence[Any], own: Sequence[ModuleType], folder: Path) -> Path:
    """Write objects into a file that their owner alone may read, and return it.

    Args:
        name: Names the file.
        things: The objects.
        own: Modules besides ``__main__`` whose classes and functions are written by value.
        folder: Where folders of such files are; each content has one of its own.

    Raises:
        ConfigError: If an object refers to something that cannot be written, such as an open file.
    """
    content = content_of(name, things, own)
    file = folder / digest(content) / f"{name}{SUFFIX}"
    try:
        for part in (folder, file.parent):
            private_files.make_folder(part)
        write_durably(file, content)
        private_files.make(file)
    except OSError as error:
        raise ConfigError(f"register: cannot write {shown(file)}: {error.strerror}") from None
    return file


def digest(content: bytes) -> str:
    """Return the start of the SHA-256 of the content of a file, which is the name of its folder."""
    return hashlib.sha256(content).hexdigest()[:12]


def content_of(name: str, things: Sequence[Any], own: Sequence[ModuleType]) -> bytes:
    """Return objects with what they refer to now; arguments as of :func:`write`.

    Raises:
        ConfigError: If an object refers to something that cannot be written, such as an open file.
    """
    import cloudpickle  # only where somebody registers something

    taken = [module for module in own if module.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in taken:
        cloudpickle.register_pickle_by_value(module)
    try:
        content: bytes = cloudpickle.dumps(list(things))
    except Exception as error:  # of whatever the objects refer to
        raise ConfigError(
            f"register: {name!r} refers to something that no other process can have: {reason_of(error)}; put the "
            "method into a Python file and name it under plugins: (docs/guide/own-method.md)"
        ) from None
    finally:
        for module in taken:
            cloudpickle.unregister_pickle_by_value(module)
    return content


def read(file: Path) -> list[Any]:
    """Return the objects of a file.

    Raises:
        ConfigError: If it cannot be read, or needs a module that this process does not have.
    """
    import cloudpickle

    try:
        things: list[Any] = cloudpickle.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"plugins: cannot read {shown(file)}: {error.strerror}") from None
    except Exception as error:
        raise ConfigError(
            f"plugins: {shown(file)} cannot be loaded by Python {sys.version_info.major}.{sys.version_info.minor}: "
            f"{reason_of(error)}"
        ) from None
    return things


def reason_of(error: Exception) -> str:
    """Return an error of somebody else's code in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MOST_REASON]
