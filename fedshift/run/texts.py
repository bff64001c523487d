"""Fills templates of pages and other texts."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedshift_core.limits import encodable
from fedshift_core.plural import plural

TEMPLATES = Path(__file__).parent / "html" / "templates"  # of pages


def filled(file: Path, /, finalize: Callable[[Any], Any] | None = None, *, html: bool = False, **content: Any) -> str:
    """Return the text of a template.

    Args:
        file: The template.
        finalize: Applied to each value that is put in.
        html: Escape all that is put in.
        content: Its variables and functions, besides ``plural``.
    """
    environment = Environment(
        loader=FileSystemLoader(file.parent),
        undefined=StrictUndefined,
        finalize=finalize,
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(file.name).render(content, plural=plural)


def render(template: str, content: Mapping[str, Any]) -> str:
    """Return a page: one HTML file that fetches nothing, all text in it escaped.

    Args:
        template: The name of a file of :data:`TEMPLATES`, without its ending.
        content: The variables of the template.
    """
    return encodable(filled(TEMPLATES / f"{template}.html.j2", html=True, **content))
