"""Writes a method to begin with: files of ``templates`` with its name in them."""

import importlib.util
import keyword
import re
import shlex
from pathlib import Path
from typing import Literal

from fedshift_app.config import registry
from fedshift_app.config.files import doc_page
from fedshift_core import __version__
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, as_found, shown
from fedshift_core.paths import user_path

Kind = Literal["method", "plugin"]

TEMPLATES = Path(__file__).resolve().parent / "templates"
ENDING = ".txt"  # of a template: no tool takes it for code
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MOST_LETTERS = 40
#: What the user types next, by kind.
NEXT = {
    "method": (
        "  pip install -e {folder}               # every command then knows the method {name}\n"
        "  fedshift run handwritten method={name} rounds=3   # it runs as it is\n"
        "  pytest {folder}                       # its test\n"
        "Change {module}/client.py and {module}/server.py; {page} has all hooks."
    ),
    "plugin": (
        "  fedshift run {folder}/own.yaml   # it runs as it is\n"
        "  pytest {folder}                 # its test\n"
        "Change {module}.py; {page} has all hooks."
    ),
}


def write(kind: Kind, name: str, output: Path | None) -> str:
    """Write the files into a new folder; return what to do next.

    Args:
        kind: A package, or one file.
        name: The name of the method.
        output: The folder; None for one of that name.

    Raises:
        ConfigError: If the name cannot be used, or the folder is there already.
    """
    module = checked(name)
    folder = user_path(str(output or name), "--output")
    if folder.exists():
        raise ConfigError(f"--output: {shown(folder)} exists already; choose another folder with -o, or remove it")
    words = {
        "name": name,
        "module": module,
        "Class": "".join(part.capitalize() for part in name.split("-")),
        "fedshift": _versions(),
    }
    source = TEMPLATES / kind
    try:
        for template in sorted(source.rglob(f"*{ENDING}")):
            path = folder / _filled(str(template.relative_to(source)).removesuffix(ENDING), words)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_filled(template.read_text(encoding="utf-8"), words), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output: {shown(folder)} cannot be written ({error.strerror})") from None
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    listed = "\n".join(f"  {file}" for file in files)
    after = NEXT[kind].format(
        folder=shlex.quote(str(output or name)), name=name, module=module, page=doc_page("docs/guide/own-method.md")
    )
    return f"{shown(folder, WHOLE_PATH)}\n{listed}\n{after}"


def checked(name: str) -> str:
    """Return the name of the module of a method's name.

    Raises:
        ConfigError: If the name is not of the right form, or something is called so already.
    """
    if not NAME.fullmatch(name) or len(name) > MOST_LETTERS:
        raise ConfigError(
            f"NAME: {as_found(name)}; allowed are lower-case letters, digits and single hyphens, a letter first, at "
            f"most {MOST_LETTERS} characters"
        )
    if name in registry.METHODS:
        raise ConfigError(f"NAME: there is a method {name!r} already (fedshift methods {name}); choose another name")
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or importlib.util.find_spec(module) is not None:
        raise ConfigError(f"NAME: Python has something called {module!r} already; choose another name")
    return module


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def _versions() -> str:
    """Return the versions of FedShift that the package asks for: this one up to the next minor one."""
    major, minor = (int(part) for part in __version__.split(".")[:2])
    return f"fedshift>={major}.{minor},<{major}.{minor + 1}"
