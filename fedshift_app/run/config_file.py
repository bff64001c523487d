"""Reads ``config.yaml`` of a run folder and checks it before anything uses it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, NonNegativeInt

from fedshift_app.run.files import CONFIG_FILE, checked
from fedshift_core.errors import ConfigError
from fedshift_core.limits import LARGEST_COUNT
from fedshift_core.params import Arithmetic
from fedshift_core.yaml_files import read_yaml


class _Resumed(BaseModel, extra="allow"):
    """One time that the run was continued."""

    after_round: NonNegativeInt
    repeats: NonNegativeInt = 0


class _ConfigFile(BaseModel, extra="allow"):
    """The keys of the file that are read by name."""

    resolved: dict[str, Any]
    engine: str = ""
    nodes: int = Field(0, ge=0, le=LARGEST_COUNT)
    run_id: str = ""
    versions: dict[str, str | None] = {}
    git: str | None = None
    arithmetic: Literal[Arithmetic, "hardware", None] = None
    asked: dict[str, tuple[Any, Any]] = {}
    command: str = ""
    plugins: list[dict[str, str]] = []
    images: dict[str, dict[str, str]] | None = None
    resumed: tuple[_Resumed, ...] = ()


def deciding(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of the file that decide a run's numbers, which each checkpoint records."""
    return {key: content[key] for key in ("resolved", "arithmetic", "plugins") if key in content}


def read(folder: Path, command: str, needed: Sequence[str]) -> dict[str, Any]:
    """Read the file of a run folder, with these keys; messages name ``command``.

    Raises:
        ConfigError: If it is no run folder, or has a file that no run writes.
    """
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise ConfigError(f"{command}: {folder} is not the folder of a run: it has no {CONFIG_FILE}")
    content = read_yaml(file)
    check(content, f"{command}: {file}", needed)
    return content


def check(content: Mapping[str, Any], place: str, needed: Sequence[str]) -> None:
    """Refuse a file that no run has written.

    Args:
        content: The content of ``config.yaml``.
        place: The file, for the start of a message.
        needed: The keys that must be there.

    Raises:
        ConfigError: With the key.
    """
    if missing := [key for key in needed if content.get(key) is None]:
        raise ConfigError(f"{place} lacks {', '.join(missing)}: it is not the configuration of a run")
    checked(_ConfigFile, content, place)
