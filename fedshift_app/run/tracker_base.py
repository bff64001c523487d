"""What all trackers share: their interface, the guard against their failures, and the values that they show."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift_app.config.trackers import CALLED, TrackerName
from fedshift_core.accuracies import average
from fedshift_strategies.federation.context import RoundResult

log = logging.getLogger("fedshift")


class Tracker:
    """Shows the rounds of a run; this base class shows nothing."""

    def add(self, result: RoundResult) -> None:
        """Show a full round."""

    def close(self) -> None:
        """Write nothing more."""


class Guarded(Tracker):
    """A tracker whose failure does not end the run: it warns once and stops.

    Attributes:
        name: Its name in a configuration.
    """

    name: TrackerName

    def __init__(
        self, folder: Path, config: Mapping[str, Any], history: Sequence[RoundResult], *, run_id: str = ""
    ) -> None:
        """Start with the rounds of ``history``: a resumed run shows only rounds that it kept."""
        self._on, self._run_id = True, run_id
        self._safely(lambda: self._open(folder, config, history))

    def add(self, result: RoundResult) -> None:
        """Write a round, which is visible at once."""
        self._safely(lambda: self._write(result))

    def close(self) -> None:
        """Write nothing more."""
        self._safely(self._end)
        self._on = False

    def _safely(self, act: Callable[[], None]) -> None:
        if not self._on:
            return
        try:
            act()
        except Exception as error:
            log.warning("tracking: %s gets no more rounds: %s: %s", CALLED[self.name], type(error).__name__, error)
            self._on = False

    def _open(self, folder: Path, config: Mapping[str, Any], history: Sequence[RoundResult]) -> None:
        raise NotImplementedError

    def _write(self, result: RoundResult) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError


def scalars(result: RoundResult) -> dict[str, float]:
    """Return the numbers of a round by tag. Accuracy on a part of the test images has its own tags."""
    accuracy = "accuracy" if result.evaluated_share == 1 else "accuracy_on_part"
    values: dict[str, float | None] = {f"{accuracy}/{domain}": value for domain, value in result.accuracy.items()}
    values[f"{accuracy}/avg"] = average(result.accuracy)
    values |= {f"test_loss/{domain}": value for domain, value in result.test_loss.items()}
    values |= {f"loss/{name}": value for name, value in result.losses.items()}
    values |= {"bytes/up": result.bytes_up, "bytes/down": result.bytes_down, "seconds": result.seconds}
    return {tag: value for tag, value in values.items() if value is not None and math.isfinite(value)}


def settings(section: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    """Yield all set values of a configuration with their dotted keys; lists as text."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from settings(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", value if isinstance(value, bool | int | float | str) else str(value)
