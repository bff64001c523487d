"""What ``config.yaml`` of a run folder says of a run, checked before any of it is used."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from fedshift_core.errors import ConfigError
from fedshift_core.limits import LARGEST_COUNT, MOST_ROUNDS, as_found
from fedshift_core.params import Arithmetic


class _Resumed(BaseModel, extra="allow"):
    """A time that the run was continued."""

    after_round: int = Field(ge=0, le=MOST_ROUNDS)


class _Told(BaseModel, extra="allow"):
    """All that is read of the file by name."""

    resolved: dict[str, Any]
    engine: str = ""
    nodes: int = Field(0, ge=0, le=LARGEST_COUNT)
    run_id: str = Field("", max_length=100)
    versions: dict[str, str | None] = {}
    git: str | None = None
    arithmetic: Literal[Arithmetic, "hardware", None] = None
    asked: dict[str, tuple[Any, Any]] = {}
    command: str = ""
    images: dict[str, dict[str, str]] | None = None
    resumed: tuple[_Resumed, ...] = ()


def check(told: Mapping[str, Any], where: str, needed: Sequence[str]) -> None:
    """Refuse what no run has written.

    Args:
        told: The content of ``config.yaml``.
        where: What a message begins with: the file.
        needed: The keys that must be there.

    Raises:
        ConfigError: With the key.
    """
    lacking = [key for key in needed if told.get(key) is None]
    if lacking:
        raise ConfigError(f"{where} lacks {', '.join(lacking)}: it is not of a run")
    try:
        _Told.model_validate(told)
    except ValidationError as error:
        problem, found = first_problem(error)
        raise ConfigError(f"{where}: {problem}, found {as_found(found)}") from None


def first_problem(error: ValidationError) -> tuple[str, Any]:
    """Return the first thing that is wrong with a file, as its dotted key and why, and what was found there."""
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'content'}: {first['msg']}", first["input"]
