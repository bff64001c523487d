"""Hook of mkdocs: the menu and the list of methods, and a page for each method that has none by hand.

Such a page is the docstrings of the method's two halves, what travels and its parameters.
"""

import ast
import functools
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from mkdocs.structure.files import File, Files

from fedshift_app.config import registry
from fedshift_core.extensions import OURS
from fedshift_core.registry import Group, Method

LIST = "<!-- the methods -->"  # of methods/index.md


def ours() -> list[Method]:
    """Return FedShift's own methods in the order of lists."""
    return [method for method in registry.listed() if registry.METHODS.origin(method.name) == OURS]


def on_config(config: Any) -> Any:
    """Put the methods' pages into the menu, by name."""
    (methods,) = (part["Methods"] for part in config.nav if isinstance(part, dict) and "Methods" in part)
    methods += [f"methods/{name}.md" for name in sorted(method.name for method in ours())]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that nobody has written."""
    for method in ours():
        path = f"methods/{method.name}.md"
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, content=page(method)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the list of methods in its place."""
    return markdown.replace(LIST, table())


@functools.cache
def table() -> str:
    """Return the methods by their groups, each with its page."""
    rows = []
    for group in get_args(Group):
        named = [f"[{registry.label(m.name)}]({m.name}.md)" for m in ours() if m.group == group]
        rows += [(registry.GROUP_TITLES[group], ", ".join(named))] if named else []
    return registry.table(("group", "methods"), rows)


def page(method: Method) -> str:
    """Return the page of a method: what its two halves say of themselves, what travels, its parameters."""
    said = [text for half in (method.strategy, method.client) if half for text in _docstring(str(half))]
    parameters = f"[Ranges and meanings](../reference/methods.md#{method.name})."
    travels = f"Weights, unless it says otherwise; in addition {registry.travels(method)}."
    title = f"# {method.latex}: {method.title[0].lower()}{method.title[1:]}"
    parts = (title, *said, "## What travels", f"{travels} On the node stays: {method.private}.", "## Parameters")
    return "\n\n".join((*parts, parameters)) + "\n"


def _docstring(half: str) -> Iterator[str]:
    """Yield the docstring of the module of ``module:Class`` as Markdown, its first line as a heading."""
    spec = find_spec(half.partition(":")[0])
    assert spec is not None
    assert spec.origin is not None
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    title, _, rest = text.replace("``", "`").partition("\n\n")
    yield from (f"## {title.removesuffix('.')}", rest)
