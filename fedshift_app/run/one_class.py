"""Models that predict one class whatever the image is: named round by round, said at the end with what to try."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedshift_app.config.sections import RunConfig
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.wire.counts import Counts
from strategies.federation.context import RoundResult

log = logging.getLogger("fedshift")

KEY = "predicts_one_class"  # of a round in metrics.jsonl, and of results.json
SEVERAL = "one class in each domain, not the same in all"
EARLY = 3  # rounds: so many in a row are said while the run goes on


def predicted(counts: Mapping[str, Counts | None], classes: Sequence[str]) -> str:
    """Return the one class that the models of a round predict; empty where they predict several, or nobody counted.

    Args:
        counts: By domain what nodes counted of their test images. A domain with images of one class alone says nothing:
            to predict it is right.
        classes: Names of the classes.
    """
    telling = [c.classes for c in counts.values() if c is not None and np.count_nonzero(c.classes[0]) > 1]
    if not telling or any(np.count_nonzero(predictions) != 1 for _, _, predictions in telling):
        return ""
    names = {classes[int(np.flatnonzero(predictions)[0])] for _, _, predictions in telling}
    return names.pop() if len(names) == 1 else SEVERAL


class Watch:
    """Says once, while a run goes on, that the first rounds that were scored in this process predict one class."""

    def __init__(self, config: RunConfig) -> None:
        """Watch a run."""
        self._config = config
        self._rounds: int | None = 0  # None: a round predicted several

    def look(self, result: RoundResult, constant: str) -> None:
        """Take notice of a round and of what :func:`predicted` says of it."""
        if not result.counts or self._rounds is None:
            return
        self._rounds = self._rounds + 1 if constant else None
        if self._rounds == EARLY and result.server_round < self._config.rounds:
            what = {"class": constant, "rounds": EARLY}
            log.warning("%s; %s", told(what), advice(self._config))


def in_all_rounds(metrics: Path) -> dict[str, Any] | None:
    """Return the class and the number of rounds where every scored round of a run predicted one; None for other runs.

    Args:
        metrics: The run's ``metrics.jsonl``; a line that is cut off is left out.
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


def told(what: Mapping[str, Any]) -> str:
    """Return the sentence of a run (:func:`in_all_rounds`)."""
    number = what["rounds"]
    rounds = "the one scored round" if number == 1 else f"each of {number} scored rounds"
    name = str(what["class"])
    which = name if name == SEVERAL else f"the one class {plain(name, MOST_NAME)!r}"
    return f"the model predicts {which} for all test images, in {rounds}: it has not learnt to tell classes apart"


def advice(config: RunConfig) -> str:
    """Return what to try then, with the values that the run had."""
    train = config.train
    clip = "" if train.clip else ", train.clip=10 where the loss grows"
    return (
        f"to try: more rounds (here {config.rounds}) or local epochs (train.epochs={train.epochs}), another train.lr "
        f"(here {train.lr:g}, a tenth and ten times that){clip}, method=fedavg to see whether it is the method; "
        "`fedshift prepare` counts the images of each class, `fedshift preview` shows them with their labels"
    )
