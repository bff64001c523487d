"""Renders a page of ``templates``: one HTML file that fetches nothing, all text in it escaped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fedshift_core.limits import encodable
from fedshift_core.plural import plural

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, content: Mapping[str, Any]) -> str:
    """Return a page.

    Args:
        template: The name of a file of :data:`TEMPLATES`, without its ending.
        content: The variables of the template.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["plural"] = plural
    return encodable(environment.get_template(f"{template}.html.j2").render(content)) + "\n"
