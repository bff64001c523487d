"""``fedshift doctor --publish``: checks whether Flower Hub would accept a folder. Nothing is sent."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedshift.run.doctor import hub
from fedshift.run.doctor.diagnostics import Problem
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown, some
from fedshift_core.plural import plural

FORMAT = 1  # of the bundle; the Hub takes no other from new apps
LONGEST_DESCRIPTION = 200  # characters


def problems(folder: Path) -> list[Problem]:
    """Return the problems that Flower Hub would have with a folder.

    Raises:
        ConfigError: If it holds no readable pyproject.toml.
    """
    project = _project(folder)
    return [
        *(Problem(line, "see https://flower.ai/docs/hub/") for line in hub.refusals(folder)),
        *_description(project),
        *_files(folder),
    ]


def _project(folder: Path) -> dict[str, Any]:
    file = folder / "pyproject.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {shown(file)}: {error}") from None


def _description(project: Mapping[str, Any]) -> Iterator[Problem]:
    """Check the entries of pyproject.toml that Flower itself does not check."""
    app = project.get("tool", {}).get("flwr", {}).get("app", {})
    if app.get("fab-format-version") != FORMAT:
        yield Problem(
            f"fab-format-version is {app.get('fab-format-version', 'not set')}, the Hub accepts {FORMAT}",
            f"[tool.flwr.app] fab-format-version = {FORMAT}",
        )
    description = str(project.get("project", {}).get("description", "")).strip()
    if not 0 < len(description) <= LONGEST_DESCRIPTION:
        yield Problem(
            f"project.description has {plural(len(description), 'character')}",
            f"give it 1 to {LONGEST_DESCRIPTION} characters",
        )


def _files(folder: Path) -> Iterator[Problem]:
    """Check the files that would be uploaded, and their number and sizes."""
    try:
        files = hub.uploaded(folder)
    except ConfigError as error:
        yield Problem(str(error), "move the file up")
        return
    most_files, most_bytes, most_in_all = hub.limits()
    sizes = {name: path.stat().st_size for name, path in files.items()}
    fewer, in_all = "add unneeded files to .gitignore", sum(sizes.values())
    if len(files) > most_files:
        yield Problem(f"{plural(len(files), 'file')}, the Hub accepts {most_files}", fewer)
    if in_all > most_in_all:
        yield Problem(f"{plural(in_all, 'byte')} in all, the Hub accepts {most_in_all}", fewer)
    if large := sorted(name for name, size in sizes.items() if size > most_bytes):
        yield Problem(f"more than {plural(most_bytes, 'byte')}: {_named(large)}", f"split them, or {fewer}")
    if strange := sorted(name for name, path in files.items() if not _is_text(path)):
        yield Problem(f"not UTF-8: {_named(strange)}", "convert them")
    for wanted in ("README.md", "LICENSE"):
        if not {wanted, f"{wanted}.md"} & files.keys():
            yield Problem(f"no {wanted} would be uploaded", "put it next to pyproject.toml, and not into .gitignore")


def _is_text(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _named(names: list[str]) -> str:
    return some([shown(name) for name in names], 3)
