"""Files and folders that a person names, on the command line or in a configuration."""

import os
from pathlib import Path

from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found

MOST_PATH = 3000  # bytes; Linux takes 4095, and FedShift's own files and folders lie below
MOST_PART = 255  # bytes of the name of one file or folder


def check_path(text: str, key: str = "") -> None:
    """Refuse what can be no path on any machine, without looking at this one's.

    Args:
        text: What was given.
        key: What it was given for, which a message names.

    Raises:
        ConfigError: With what is allowed.
    """
    told = f"{key}: {as_found(text)} can be no path" if key else f"{as_found(text)} can be no path"
    try:
        parts = [os.fsencode(part) for part in Path(text).parts]
    except UnicodeEncodeError:
        raise ConfigError(f"{told}: it holds half a character") from None
    if "\0" in text:
        raise ConfigError(f"{told}: it holds NUL")
    if max(map(len, parts), default=0) > MOST_PART or sum(map(len, parts)) + len(parts) > MOST_PATH:
        raise ConfigError(f"{told}: expected at most {MOST_PATH} bytes, {MOST_PART} of them in one name")


def user_path(given: str | os.PathLike[str], key: str = "", start: Path | None = None) -> Path:
    """Return the absolute path that a person means: ``~`` is a home, what is relative starts in the working folder.

    Whether anything is there is left open; but asking the path for it fails no more.

    Args:
        given: What was typed.
        key: What it was typed for, which a message names.
        start: Where what is relative starts instead.

    Raises:
        ConfigError: If it can be no path here: NUL in it, too long, the home of nobody, a loop of links, a folder on
            the way that this user may not enter.
    """
    text, told = os.fspath(given), f"{key}: " if key else ""
    check_path(text, key)
    try:
        path = Path(start or "", Path(text).expanduser()).resolve()
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise ConfigError(f"{told}cannot look at {as_found(text)}: {error.strerror}") from None
    except RuntimeError as error:  # of expanduser and resolve
        raise ConfigError(f"{told}{as_found(text)} can be no path: {error}") from None
    return path


def typed_path(given: str | os.PathLike[str]) -> Path:
    """Return a path as it was typed, but for the home of ``~``, once it was checked: results speak of it so.

    Raises:
        ConfigError: As ``user_path``.
    """
    user_path(given)
    return Path(given).expanduser()
