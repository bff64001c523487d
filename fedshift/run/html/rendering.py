"""Renders a page of ``templates``: one HTML file that fetches nothing, all text in it escaped."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift.run.texts import filled
from fedshift_core.limits import encodable

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, content: Mapping[str, Any]) -> str:
    """Return a page.

    Args:
        template: The name of a file of :data:`TEMPLATES`, without its ending.
        content: The variables of the template.
    """
    return encodable(filled(TEMPLATES / f"{template}.html.j2", html=True, **content))
