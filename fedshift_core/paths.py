"""Checks paths that a person names on the command line or in a configuration."""

import os
import sys
from pathlib import Path

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

#: A path as a person gives it.
Named = str | os.PathLike[str]
MOST_PATH = 3000  # bytes; Linux allows 4095, and FedShift adds its own files and folders below
MOST_PART = 255  # bytes of the name of one file or folder


def check_path(text: str, key: str = "") -> None:
    """Refuse a text that cannot be a path on any machine, without access to this machine's disk.

    Args:
        text: The path.
        key: The key that it belongs to, for messages.

    Raises:
        ConfigError: With what is allowed.
    """
    problem = f"{f'{key}: ' if key else ''}{as_found(text)} cannot be a path"
    try:
        parts = [os.fsencode(part) for part in Path(text).parts]
    except UnicodeEncodeError:
        raise ConfigError(f"{problem}: it contains half a character") from None
    if "\0" in text:
        raise ConfigError(f"{problem}: it contains NUL")
    if max(map(len, parts), default=0) > MOST_PART or sum(map(len, parts)) + len(parts) > MOST_PATH:
        raise ConfigError(f"{problem}: expected at most {MOST_PATH} bytes, {MOST_PART} of them in one name")


def path_text(given: object, key: str = "", expected: str = "a path") -> str:
    """Return what a caller gave as a path, as text.

    Args:
        given: The argument.
        key: The key that it belongs to, for messages.
        expected: What it should be, for messages.

    Raises:
        ConfigError: If it is neither text nor a path.
    """
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str):  # bytes, too, can be a path elsewhere
        raise ConfigError(f"{f'{key}: ' if key else ''}expected {expected}, found {as_found(given)}")
    return text


def user_path(given: str | os.PathLike[str], key: str = "", start: Path | None = None) -> Path:
    """Return the absolute path that a person means: ``~`` is a home, a relative path starts in the working folder.

    The path need not exist, but a look-up of it does not fail any more.

    Args:
        given: The typed path.
        key: The key that it belongs to, for messages.
        start: Another start of a relative path.

    Raises:
        ConfigError: If it is of another type, or cannot be a path here: NUL in it, too long, an unknown home, a loop
            of links, or a folder on the way that this user may not enter.
    """
    text, prefix = path_text(given, key), f"{key}: " if key else ""
    check_path(text, key)
    try:
        path = Path(start or "", Path(text).expanduser()).resolve()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise ConfigError(f"{prefix}cannot access {as_found(text)}: {error.strerror}") from None
    except RuntimeError as error:  # of expanduser and resolve
        raise ConfigError(f"{prefix}{as_found(text)} cannot be a path: {error}") from None
    return path


def typed_path(given: str | os.PathLike[str], key: str = "") -> Path:
    """Return a checked path as it was typed, with ``~`` expanded, for use in results; arguments as of ``user_path``.

    Raises:
        ConfigError: As ``user_path``.
    """
    user_path(given, key)
    return Path(given).expanduser()


def path_with_flower() -> str:
    """Return PATH with the commands of this environment first, where Flower looks for its own."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
