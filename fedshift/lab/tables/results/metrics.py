"""The scores of ``--score``: which numbers of finished runs are compared."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedshift.lab.tables.results.loading import FIGURES as FIGURES
from fedshift.lab.tables.results.loading import Run, order_behind
from fedshift.lab.tables.results.settings import BN_ORDER, BN_STATISTICS, LAST, ROUND
from fedshift_app.features.bn_statistics import BN_STATISTICS_TEXT
from fedshift_core.accuracies import average, worst
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, as_found, shown
from fedshift_core.rounds import LAST_ROUNDS, last_rounds, span
from fedshift_core.spelling import meant
from fedshift_core.wire.names import AVERAGED, BN_SCORE

#: The scores of ``--score`` that are not by domain, with the measure whose difference to the baseline is shown.
MEASURES = {"clients": "GATA", "bn": AVERAGED}
LOWEST_IS_BEST = ("ece",)
#: Those that are means over the classes of a domain.
OVER_CLASSES = ("balanced_accuracy", "macro_f1", "auc")
LAST_FIVE = "mean of the last five rounds"
LAST_ROUND, LAST_OR_KEPT = "last round", "last round or the one that was kept"
WORST_OF = " WORST"  # ends a column of ``--score bn``: the worst domain with these statistics
#: The scores of ``--score``, with their names.
SCORES = {
    "last5": LAST_FIVE,
    "final": LAST_ROUND,
    "best": "best round, chosen after seeing test results",
    "validation": "round chosen on validation images",
    "bn": f"AVG and WORST by BatchNorm's statistics (evaluate.bn), {LAST_FIVE}",
    **{f"{BN_SCORE}{kind}": f"BatchNorm's statistics {text}, {LAST_FIVE}" for kind, text in BN_STATISTICS_TEXT.items()},
    **dict.fromkeys(FIGURES, LAST_ROUND),
    "clients": f"client models after local training, {LAST_FIVE}",
}
#: The setting with which a run has a score that not all have.
_SETTING = {
    "validation": "allocation.validation_fraction",
    "clients": "evaluate.client_models=last",
    **dict.fromkeys(FIGURES, "evaluate.figures=true"),
}
_CHOSEN = ("best", "validation")  # the round is chosen for each run, whatever it keeps


class NotScoredError(ConfigError):
    """A run lacks the numbers of a score."""


def check(name: str) -> None:
    """Refuse a score that there is not.

    Raises:
        ConfigError: If it is unknown; the message lists the scores.
    """
    if name not in SCORES:
        raise ConfigError(f"--score is {as_found(name)}; allowed are {', '.join(SCORES)}{meant(name, SCORES)}")


def taken(run: Run, name: str) -> Mapping[str, float | None]:
    """Return a run's numbers of a score, in percent by column.

    Raises:
        NotScoredError: If the run lacks the score.
    """
    if name == "bn":
        return all_statistics(run.scores, len(run.only or run.results.domains))
    if name not in run.scores:
        raise NotScoredError(
            f"--score {name}: {shown(run.name, MOST_NAME)} was not scored so", remedy=remedy(run, name)
        )
    return run.scores[name]


def remedy(run: Run, name: str) -> str:
    """Return how a run has a score that this one lacks."""
    if not name.startswith(BN_SCORE):
        return f"in a new run: {_SETTING[name]}"
    place = str(run.place) if run.place.is_dir() else run.name
    setting = f"'evaluate.bn=[{run.results.scored_with},{name.removeprefix(BN_SCORE)}]'"
    return f"in a new run: {setting}\nor, of a run with a checkpoint: fedshift rescore {shlex.quote(place)} {setting}"


def all_statistics(scores: Mapping[str, Mapping[str, float | None]], domains: int) -> dict[str, float | None]:
    """Return average and worst of the domains for each kind of BatchNorm statistics; None where a domain lacks it."""
    averages: dict[str, float | None] = {}
    worsts: dict[str, float | None] = {}
    for kind in BN_STATISTICS_TEXT:
        values = scores.get(f"{BN_SCORE}{kind}", {})
        averages[kind] = average(values) if len(values) == domains else None
        least = worst(values)
        if averages[kind] is not None and least is not None:
            worsts[f"{kind}{WORST_OF}"] = values[least]
    return averages | worsts


def as_scored(runs: Sequence[Run], score: str, *, of_kept: bool = False) -> list[Run]:
    """Return runs whose settings have the round and the BatchNorm statistics that their numbers are of.

    Groups are told apart by them. Metrics are of the round whose model a run keeps, and so are all numbers of models
    that were scored again. The statistics are those of the score, whichever kind a run lists first.

    Args:
        runs: The runs.
        score: The score.
        of_kept: Whether other numbers are compared, which are of the kept round, too.
    """
    kept = of_kept or score in FIGURES
    kind = score.removeprefix(BN_SCORE)
    scored = []
    for run in runs:
        instead: dict[str, Any] = {}
        if kept or (run.scored_again and score not in _CHOSEN):
            instead[ROUND] = str(run.config["keep"])
        if kind != score:
            instead |= {BN_STATISTICS: kind, BN_ORDER: order_behind(run.resolved, kind)}
        scored.append(replace(run, instead={**run.instead, **instead}) if instead else run)
    return scored


def is_mean(score: str) -> bool:
    """Return whether a score is a mean over rounds."""
    return LAST_FIVE in SCORES[score]


def rounds_behind(runs: Sequence[Run], score: str) -> str:
    """Return over which rounds a score is averaged in these runs: ``last five rounds``, ``last round``.

    Where they are not the last ones of all runs, it is ``last five scored rounds (60 to 100)``, without the brackets if
    runs differ in them.
    """
    counts = {run.averaged(score) for run in runs}
    over = {run.averaged_in(score) for run in runs}
    least, most, kind = min(counts), max(counts), "scored " if any(over) else ""
    if least != most:
        text = f"last {least} to {most} {kind}rounds"
    else:
        text = last_rounds(most, kind) if most != LAST_ROUNDS else f"last five {kind}rounds"
    return f"{text} ({span(min(over))})" if len(over) == 1 and kind else text


def other_rounds(runs: Sequence[Run], score: str) -> str:
    """Return the rounds that a score is a mean over in these runs, if it is and they are not the last five."""
    text = rounds_behind(runs, score) if is_mean(score) else ""
    return "" if LAST_FIVE.endswith(text) else text


def called_of(called: str, runs: Sequence[Run], score: str) -> str:
    """Return the name of a score (:data:`SCORES`) with the averaged rounds of these runs, and which round it is."""
    behind = rounds_behind(runs, score)
    mean = "mean of the " if any(run.averaged(score) > 1 for run in runs) else ""
    called = called.replace(LAST_FIVE, mean + behind)
    kept = any(run.group_settings[ROUND] != LAST for run in runs)
    return called.replace(LAST_ROUND, LAST_OR_KEPT) if kept else called
