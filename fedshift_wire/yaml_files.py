"""YAML files that hold a mapping, read strictly."""

from pathlib import Path
from typing import Any

import yaml

from fedshift_wire.errors import ConfigError


class _OnceLoader(yaml.SafeLoader):
    """Refuses a mapping that names a key twice, of which YAML would silently drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping whose keys differ."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(problem=f"the key {key!r} comes twice, again in line {line}")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: If it cannot be read, is no YAML, or holds something else.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_OnceLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"{path}: cannot be read as YAML: {first}") from None
    if content is None or isinstance(content, dict):
        return content or {}
    raise ConfigError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")
