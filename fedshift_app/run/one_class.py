"""Detects models that predict one class for every image: noted per round, reported at the end with advice."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedshift_app.config.sections import RunConfig
from fedshift_app.features.figures.server import CountedFigures
from fedshift_app.run.facts import ONE_CLASS, one_class_text
from fedshift_app.run.facts import SEVERAL as SEVERAL
from fedshift_core.wire.counts import Counts
from fedshift_strategies.federation.context import RoundResult

log = logging.getLogger("fedshift")

KEY = ONE_CLASS
EARLY = 3  # rounds in a row after which a warning appears during the run


def predicted(result: RoundResult, classes: Sequence[str]) -> str:
    """Return the one class that the models of a round predict. Empty if they predict several or no node counted.

    Args:
        result: The round. A domain with images of one class is ignored: to predict that class is right there.
        classes: Names of the classes.
    """
    counted = [c.classes for c in _counts(result).values() if c is not None and np.count_nonzero(c.classes[0]) > 1]
    if not counted or any(np.count_nonzero(predictions) != 1 for _, _, predictions in counted):
        return ""
    names = {classes[int(np.flatnonzero(predictions)[0])] for _, _, predictions in counted}
    return names.pop() if len(names) == 1 else SEVERAL


def _counts(result: RoundResult) -> Mapping[str, Counts | None]:
    counts: Mapping[str, Counts | None] = result.passing.get(CountedFigures.key, {})
    return counts


class Watch:
    """Warns once during a run if the first rounds scored in this process predict one class."""

    def __init__(self, config: RunConfig) -> None:
        """Begin to watch a run."""
        self._config = config
        self._rounds: int | None = 0  # None: a round predicted several classes

    def look(self, result: RoundResult, constant: str) -> None:
        """Record a round and the result of :func:`predicted` for it."""
        if not _counts(result) or self._rounds is None:
            return
        self._rounds = self._rounds + 1 if constant else None
        if self._rounds == EARLY and result.server_round < self._config.rounds:
            constant_rounds = {"class": constant, "rounds": EARLY}
            log.warning("%s; %s", one_class_text(constant_rounds), advice(self._config))


def in_all_rounds(metrics: Path) -> dict[str, Any] | None:
    """Return class and number of rounds if every scored round of a run predicted one class, else None.

    Args:
        metrics: The run's ``metrics.jsonl``; a truncated line is skipped.
    """
    lines = []
    for text in metrics.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    scored = [line.get(KEY) for line in lines if line.get("accuracy") and line.get("evaluated_share") is None]
    if not scored or not all(scored):
        return None
    return {"class": scored[-1] if len(set(scored)) == 1 else SEVERAL, "rounds": len(scored)}


def advice(config: RunConfig) -> str:
    """Return advice for such a run, with its present values."""
    if not config.rounds:
        return "nothing was trained (rounds=0)"
    train = config.train
    clip = "" if train.clip else ", train.clip=10 where the loss grows"
    return (
        f"to try: more rounds (here {config.rounds}) or local epochs (train.epochs={train.epochs}), another train.lr "
        f"(here {train.lr:g}; a tenth and ten times that){clip}, method=fedavg to see whether the method is the cause; "
        "`fedshift prepare` counts the images of each class, `fedshift preview` shows them with their labels"
    )
