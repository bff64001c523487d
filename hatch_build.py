"""Files of a wheel besides the packages that pyproject.toml maps: the files that make ``fedshift/app`` a Flower app.

The packages lie there once more: Flower bundles the folders ``datasets``, ``clients`` and ``strategies``; where their
parent is on the path these are packages of such names.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PARTS = ("pyproject.toml", "README.md", "LICENSE", "fedshift_app", "fedshift_core", "strategies", "clients", "datasets")


class Files(BuildHookInterface):  # type: ignore[type-arg]
    """Adds them; hatchling moves folders by itself, single files it would also copy for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files, with their places in the wheel; ``version`` is ``standard`` or ``editable``."""
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"] |= {name: f"fedshift/app/{name}" for name in PARTS}
