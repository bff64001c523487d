"""``fedshift doctor --publish``: checks whether Flower Hub would accept a folder. Nothing is sent."""

import re
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
#: What a README must say for users of the uploaded files alone, with patterns that recognise it.
SAID = {
    "how many virtual SuperNodes a simulation needs": r"num-supernodes=\d+",
    "how a deployment gets its data": r"(?is)\bdeployment\b.*\bdata-dir\b",
    "how the app is run without make": r"flwr run \.",
    "how it is installed without make": r"pip install",
}
#: A link to a file next to the README; not a picture, for which the Hub shows the text.
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?://|#|mailto:)([^)#\s]+)")


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
    """Check the files that would be uploaded, their number and sizes, and the README."""
    try:
        files = hub.uploaded(folder)
    except ConfigError as error:
        yield Problem(str(error), "move the file up")
        return
    most_files, most_bytes, most_in_all = hub.limits()
    sizes = {name: path.stat().st_size for name, path in files.items()}
    if len(files) > most_files:
        yield Problem(f"{plural(len(files), 'file')}, the Hub accepts {most_files}", "add unneeded files to .gitignore")
    if large := sorted(name for name, size in sizes.items() if size > most_bytes):
        yield Problem(
            f"more than {plural(most_bytes, 'byte')}: {_named(large)}", "split them, or add them to .gitignore"
        )
    if sum(sizes.values()) > most_in_all:
        yield Problem(
            f"{plural(sum(sizes.values()), 'byte')} in all, the Hub accepts {most_in_all}",
            "add unneeded files to .gitignore",
        )
    if strange := sorted(name for name, path in files.items() if not _is_text(path)):
        yield Problem(f"not UTF-8: {_named(strange)}", "convert them")
    if "LICENSE" not in files and "LICENSE.md" not in files:
        yield Problem("no LICENSE would be uploaded", "put it next to pyproject.toml, and not into .gitignore")
    yield from _readme(folder, files)


def _readme(folder: Path, files: Mapping[str, Path]) -> Iterator[Problem]:
    if "README.md" not in files:
        yield Problem("no README.md would be uploaded", "put it next to pyproject.toml")
        return
    text = files["README.md"].read_text(encoding="utf-8", errors="replace")
    for what, words in SAID.items():
        if not re.search(words, text):
            yield Problem(f"README.md does not explain {what}", f"looked for: {words}")
    folders = {parent.as_posix() for name in files for parent in Path(name).parents}
    lost = sorted({link for link in LINK.findall(text) if link.rstrip("/") not in files.keys() | folders})
    if lost:
        yield Problem(
            f"README.md links to files that are not uploaded: {_named(lost)}", "link to them by URL, or remove the link"
        )


def _is_text(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _named(names: list[str]) -> str:
    return some([shown(name) for name in names], 3)
