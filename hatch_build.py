"""What a wheel holds besides the folders that pyproject.toml maps: files that make ``fedshift/app`` a Flower app."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Files(BuildHookInterface):  # type: ignore[type-arg]
    """Adds them; hatchling moves folders by itself, single files it would also copy for an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files, with their places in the wheel; ``version`` is ``standard`` or ``editable``."""
        if self.target_name == "wheel" and version == "standard":
            build_data["force_include"] |= {
                name: f"fedshift/app/{name}" for name in ("pyproject.toml", "README.md", "LICENSE")
            }
