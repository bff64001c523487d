"""The code of this node, which answers all runs: its hash, and that of a run's bundle, which is never unpacked.

**The hash** is the SHA-256 of a line for each file of code, as ``sha256sum PATH`` prints it, sorted by path. Code are
the Python files of the app and the YAML files of its ``conf``; in a bundle all that it holds but for what
Flower writes itself (``pyproject.toml``, ``.info``) and texts. A checkout, a wheel and a bundle of one commit have one.
"""

import fnmatch
import functools
import hashlib
import json
import os
import re
import tomllib
import zipfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from fedshift_app import APP, ROOT
from fedshift_core import __version__
from fedshift_core.limits import MOST_NAME, plain

HASH = re.compile(r"SHA256:[0-9a-f]{64}")
NAME = "fedshift/fedshift"  # publisher and name of the app
_IN_WHEEL = APP != ROOT
PACKAGES = ("clients", "datasets", "fedshift_app", "fedshift_core", "strategies")
CONF = ("conf/datasets", "conf/experiments", "conf/methods")
PROJECT = "pyproject.toml"
NO_CODE, NOTES = {PROJECT, "README.md", "LICENSE"}, ".info/"  # of a bundle
MOST_BUNDLE, MOST_UNPACKED, MOST_PROJECT = 16 << 20, 64 << 20, 1 << 20  # bytes; Flower's bundles have up to 10 MiB
MOST_FILES = 5000
MOST_VERSION = 12  # characters of a version in a message


@dataclass(frozen=True)
class Code:
    """The code that a run brings.

    Attributes:
        name: Publisher and name of the app.
        version: Of the app.
        sha256: Its hash; empty where the bundle cannot be read.
    """

    name: str = ""
    version: str = ""
    sha256: str = ""


_of_run: Code | None = None  # of the message that this process works on


def of_bundle(content: bytes) -> Code:
    """Return what a bundle is, read in memory alone."""
    try:
        return _read(content)
    except Exception:  # any: the server chose its bytes
        return Code()


def _read(content: bytes) -> Code:
    lines, project, left = [], b"", MOST_UNPACKED
    if len(content) > MOST_BUNDLE:
        raise ValueError("too large")
    with zipfile.ZipFile(BytesIO(content)) as bundle:
        if len(bundle.infolist()) > MOST_FILES:
            raise ValueError("too many files")
        for entry in bundle.infolist():
            with bundle.open(entry) as file:
                data = file.read(left + 1)
            left -= len(data)
            if left < 0:
                raise ValueError("too large")
            if entry.filename == PROJECT:
                project = data
            if entry.filename not in NO_CODE and not entry.filename.startswith(NOTES):
                lines.append(_line(entry.filename, data))
    if len(project) > MOST_PROJECT:
        raise ValueError("too large")
    about = tomllib.loads(project.decode())
    name = f"{about['tool']['flwr']['app']['publisher']}/{about['project']['name']}"
    return Code(name, str(about["project"]["version"]), _hash(lines))


@functools.lru_cache(maxsize=4)  # of all messages of a run
def note(content: bytes) -> bytes:
    """Return what the process that works on a message is given in the place of a bundle."""
    return json.dumps(asdict(of_bundle(content))).encode()


def take(noted: bytes, **_options: Any) -> None:
    """Take in the note of a bundle, in the place of Flower's ``install_from_fab``."""
    global _of_run
    _of_run = Code(**json.loads(noted))


def of_run() -> Code | None:
    """Return the code of the run whose message this process works on; None of a simulated node and of plain Flower."""
    return _of_run


def refuse(run: Code, trusted: Collection[str]) -> str:
    """Return why this node answers no message of a run of such code; empty where it does, with its own.

    Args:
        run: The code of the run.
        trusted: Hashes of other code that the node's owner trusts to go with this node's.
    """
    own, name, version = installed(), plain(run.name, MOST_NAME), plain(run.version, MOST_VERSION)
    if _stats() != _first()[0] and _hash(_lines()) != own:
        return f"FedShift was changed on its disk while it ran {own} ({__version__}): the node must be started again"
    if not run.sha256:
        return "the bundle of the run cannot be read"
    if run.name != NAME:
        return f"it runs {NAME}, not {name}"
    if run.sha256 in (own, *trusted):
        return ""
    return (  # with a node's name and number before and after it on one line of an error
        f"runs {own} ({__version__}), not {run.sha256} ({version}): install that, or name it in code.trusted"
    )


# --- what is installed -----------------------------------------------------------------------------------


def installed() -> str:
    """Return the hash of the code that this process runs; it is first asked for before that is imported."""
    return _first()[1]


@functools.cache
def _first() -> tuple[tuple[tuple[str, int, int], ...], str]:
    """Return the app's files and their hash as this process, or the one that it was forked from, first saw them."""
    return _stats(), _hash(_lines())


def _files() -> Iterator[tuple[str, str]]:
    """Yield each file with its path in a bundle; of a wheel those that are imported, not those that Flower bundles."""
    for name in (*PACKAGES, *CONF):
        folder, place = name, APP / name
        if _IN_WHEEL and name in PACKAGES:
            folder = name if name.startswith("fedshift_") else f"{name}/fedshift_{name}"
            place = ROOT / folder.rpartition("/")[2]
        for top, _, names in os.walk(place):  # a third of the time of rglob: each message of a real node does it
            for each in fnmatch.filter(names, "*.yaml" if name in CONF else "*.py"):
                yield f"{folder}{top.removeprefix(str(place))}/{each}", f"{top}/{each}"


def _stats() -> tuple[tuple[str, int, int], ...]:
    """Return what shows in some milliseconds whether a file may have changed."""
    stats = ((path, os.stat(path)) for _, path in _files())  # noqa: PTH116
    return tuple(sorted((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats))


def _lines() -> list[str]:
    return [_line(name, Path(path).read_bytes()) for name, path in _files()]


def _line(path: str, content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()}  {path}\n"


def _hash(lines: Iterable[str]) -> str:
    by_path = sorted(lines, key=lambda line: line.partition("  ")[2])
    return f"SHA256:{hashlib.sha256(''.join(by_path).encode(errors='surrogateescape')).hexdigest()}"
