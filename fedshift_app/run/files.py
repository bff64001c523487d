"""The files of a run folder, for all who read one: their names, their content, texts. Imports neither Flower nor torch.

``results.json`` is read by :func:`results` alone, ``metrics.jsonl`` by :func:`full_lines`; :func:`checked` holds the
content of a file against its model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_ROUNDS, as_found, plain, some
from fedshift_core.plural import plural

#: Name in ``results.json`` of the models scored with ``evaluate.personal_on=all_domains``.
ON_ALL = "personal models, each on all domains"
#: Key of ``results.json``: the rounds behind the mean, where they are not the last ones of the run.
AVERAGED_OVER = "averaged_over"
CONFIG_FILE, METRICS_FILE, RESULTS_FILE = "config.yaml", "metrics.jsonl", "results.json"
LOCK_FILE = "lock"  # locked by the process that writes here
MOST_CHANGED = 5  # changed settings of a line
SKIPPED_FILE = "skipped.json"  # images that dataset.skip_broken left out

Shape = TypeVar("Shape", bound=BaseModel)


class Changed(BaseModel):
    """Settings that were changed between two rounds."""

    from_round: int
    settings: dict[str, tuple[Any, Any]]


class Chosen(BaseModel, extra="allow"):
    """The round whose model the run keeps."""

    round: int = Field(ge=0, le=MOST_ROUNDS)


class _Results(BaseModel, extra="allow"):
    """The keys of ``results.json`` that each run has; features and comparisons have models of theirs."""

    rounds: int = Field(ge=0, le=MOST_ROUNDS)
    averaged_rounds: int
    domains: dict[str, float | None]
    final: dict[str, float | None]
    avg: float | None = None
    seconds: float
    chosen_round: Chosen | None = None
    changed: list[Changed] = []
    lost: dict[str, list[int]] = {}
    unscored: dict[str, list[int]] = {}
    missing_tests: dict[str, dict[str, tuple[int, int]]] = {}


def read_json(file: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        ConfigError: If it cannot be read as JSON.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON: {error}") from None


def checked(shape: type[Shape], content: Any, place: str) -> Shape:
    """Return the content of a file as its model.

    Raises:
        ConfigError: If no run has written it: the place, the dotted key, the reason, the value there.
    """
    try:
        return shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "content"
        raise ConfigError(f"{place}: {key}: {first['msg']}, found {as_found(first['input'])}") from None


def results(folder: Path) -> dict[str, Any]:
    """Return the content of ``results.json`` of a run folder.

    Raises:
        ConfigError: If it is missing, cannot be read, or was not written by a run.
    """
    content: dict[str, Any] = read_json(folder / RESULTS_FILE)
    checked(_Results, content, str(folder / RESULTS_FILE))
    return content


def full_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl`` up to the first that is not the next full round."""
    lines: list[dict[str, Any]] = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for text_line in text.splitlines(keepends=True):
        try:
            content = json.loads(text_line) if text_line.endswith("\n") else None
        except ValueError:
            break
        if not isinstance(content, dict) or content.get("round") != len(lines) + 1:
            # A run without rounds has one line, the scores of its initial weights.
            return [content] if isinstance(content, dict) and content.get("round") == 0 and not lines else lines
        lines.append(content)
    return lines


def changed_text(changed: Sequence[Mapping[str, Any]]) -> str:
    """Return a line on the settings that were changed between rounds (``changed`` of ``results.json``); or nothing."""
    texts = [
        f"{key} {as_found(before)} -> {as_found(now)} from round {change['from_round']}"
        for change in changed
        for key, (before, now) in change["settings"].items()
    ]
    return plain(f"settings were changed within the run: {some(texts, MOST_CHANGED)}") if texts else ""


def untrained_line(untrained: Mapping[str, Sequence[int]], averaged: int, *, counts: bool) -> str:
    """Return a text on the rounds of a mean in which some nodes had not trained yet.

    Args:
        untrained: Their indices by round (``results.json``, key ``untrained``).
        averaged: Number of rounds of the mean.
        counts: Whether these nodes were scored (``evaluate.untrained``).
    """
    nodes = plural(max(map(len, untrained.values())), "node")
    treatment = "scored all the same" if counts else "not scored"
    return f"in {len(untrained)} of {plural(averaged, 'averaged round')} up to {nodes} had not trained yet, {treatment}"
