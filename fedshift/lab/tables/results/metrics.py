"""The scores of ``--score``: which numbers of finished runs are compared."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import LAST
from fedshift_app.features.bn_statistics import BN_STATISTICS_TEXT
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, as_found, shown
from fedshift_core.rounds import LAST_ROUNDS, last_rounds, span
from fedshift_core.spelling import meant
from fedshift_core.wire.names import AVERAGED, BN_SCORE

#: Suffix of a column of ``--score bn``: the worst domain with these statistics.
WORST_OF = " WORST"


class NotScoredError(ConfigError):
    """A run lacks the numbers of a score."""


Score = Callable[[Run], dict[str, float | None]]


def score(name: str) -> tuple[Score, str]:
    """Return the function that takes a run's numbers, in percent, and the name of the score.

    Raises:
        ConfigError: If the name is unknown; the message lists the scores.
    """
    if name not in SCORES:
        raise ConfigError(f"--score is {as_found(name)}; allowed are {', '.join(SCORES)}{meant(name, SCORES)}")
    return SCORES[name]


def _validation(run: Run) -> dict[str, float | None]:
    if run.results.best_validation is None:
        raise NotScoredError(
            f"--score validation: {run.name} chose no round on validation images (allocation.validation_fraction)"
        )
    return run.results.best_validation.domains


def _clients(run: Run) -> dict[str, float | None]:
    clients = run.results.client_models
    if clients is None:
        raise NotScoredError(f"--score clients: {run.name} scored no client models (evaluate.client_models=last)")
    known = [value for value in clients.by_domain.values() if value is not None]
    overall = sum(known) / len(known) if known and len(known) == len(clients.by_domain) else None
    return (
        {f"ATA {domain}": value for domain, value in clients.ata.items()}
        | {"LTA": clients.lta, "GASA": clients.gasa, "CPRR": clients.cprr, "GATA": clients.gata}
        | {f"all on {domain}": value for domain, value in clients.by_domain.items()} | {"all on AVG": overall}
    )  # fmt: skip


def with_statistics(run: Run, kind: str) -> dict[str, float | None] | None:
    """Return a run's accuracies with a kind of BatchNorm statistics; None if it lacks them."""
    return run.results.domains if kind == run.results.scored_with else run.results.others.get(BN_SCORE + kind)


def _by_statistics(kind: str) -> Score:
    def take(run: Run) -> dict[str, float | None]:
        values = with_statistics(run, kind)
        if values is None:
            place = str(run.place) if run.place.is_dir() else run.name
            setting = f"'evaluate.bn=[{run.results.scored_with},{kind}]'"
            raise NotScoredError(
                f"--score {BN_SCORE}{kind}: {shown(run.name, MOST_NAME)} was not scored so, but can be, by a new run "
                "or, where its folder has a checkpoint, by `fedshift rescore`; --score bn shows the ways there are",
                remedy=f"in a new run: {setting}\nor: fedshift rescore {shlex.quote(place)} {setting}",
            )
        return values

    return take


def _by_figure(name: str) -> Score:
    def take(run: Run) -> dict[str, float | None]:
        figures = run.results.figures
        if figures is None:
            raise NotScoredError(
                f"--score {name}: {run.name} has no metrics by class (evaluate.figures=true; "
                "runs of earlier versions had none)"
            )
        domains = {domain: figures.domains.get(domain) for domain in run.results.domains}
        return {domain: None if figure is None else getattr(figure, name) for domain, figure in domains.items()}

    return take


def _all_statistics(run: Run) -> dict[str, float | None]:
    """Return average and worst of the domains for each kind of BatchNorm statistics.

    If a kind was not requested or lacks a domain, the average is None and the worst is left out.
    """
    averages: dict[str, float | None] = {}
    worsts: dict[str, float | None] = {}
    for kind in BN_STATISTICS_TEXT:
        known = [value for value in (with_statistics(run, kind) or {}).values() if value is not None]
        full = len(known) == len(run.results.domains)
        averages[kind] = sum(known) / len(known) if full else None
        if full and len(known) > 1:
            worsts[f"{kind}{WORST_OF}"] = min(known)
    return averages | worsts


#: The scores of ``--score`` that are not by domain, with the measure whose difference to the baseline is shown.
MEASURES = {"clients": "GATA", "bn": AVERAGED}
#: The scores of ``--score`` that are not accuracies, with their names; the lowest ``ece`` is the best.
FIGURES = {
    "balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1", "auc": "AUC", "ece": "expected calibration error",
}  # fmt: skip
LOWEST_IS_BEST = ("ece",)
#: Those that are means over the classes of a domain.
OVER_CLASSES = ("balanced_accuracy", "macro_f1", "auc")
#: Name of the scores that are means over five rounds.
LAST_FIVE = "mean of the last five rounds"
LAST_ROUND, LAST_OR_KEPT = "last round", "last round or the one that was kept"
#: Scores whose round is chosen for each run, whatever it keeps.
_CHOSEN = ("best", "validation")


def with_rounds(runs: Sequence[Run], score: str, *, of_kept: bool = False) -> list[Run]:
    """Return runs with the round that their numbers are of, by which groups are told apart.

    Metrics are of the round whose model a run keeps, and so are all numbers of models that were scored again.

    Args:
        runs: The runs.
        score: The score.
        of_kept: Whether other numbers are compared, which are of the kept round, too.
    """

    def compared(run: Run) -> str:
        kept = of_kept or score in FIGURES or (run.scored_again and score not in _CHOSEN)
        return str(run.config["keep"]) if kept else LAST

    return [
        run if run.compared_round == (known := compared(run)) else replace(run, compared_round=known) for run in runs
    ]


def is_mean(score: str) -> bool:
    """Return whether a score is a mean over rounds."""
    return LAST_FIVE in SCORES[score][1]


def rounds_behind(runs: Sequence[Run], score: str) -> str:
    """Return over which rounds a score is averaged in these runs: ``last five rounds``, ``last round``.

    Where they are not the last ones of all runs, it is ``last five scored rounds (60 to 100)``, without the brackets if
    runs differ in them.
    """
    counts = {run.averaged(score) for run in _singles(runs)}
    over = {run.averaged_in(score) for run in _singles(runs)}
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


def _singles(runs: Iterable[Run]) -> list[Run]:
    return [part for run in runs for part in run.singles]


def called_of(called: str, runs: Sequence[Run], score: str) -> str:
    """Return the name of a score with the averaged rounds, and which round it is.

    Args:
        called: As :data:`SCORES` has it.
        runs: The runs of a table.
        score: The score.
    """
    if any(run.averaged(score) > 1 for run in _singles(runs)):
        called = called.replace(LAST_FIVE, f"mean of the {rounds_behind(runs, score)}")
    elif runs:
        called = called.replace(LAST_FIVE, rounds_behind(runs, score))
    return called.replace(LAST_ROUND, LAST_OR_KEPT) if any(run.compared_round != LAST for run in runs) else called


#: The scores of ``--score``.
SCORES: dict[str, tuple[Score, str]] = {
    "last5": (lambda run: run.results.domains, LAST_FIVE),
    "final": (lambda run: run.results.final, LAST_ROUND),
    "best": (lambda run: run.results.best_test.domains, "best round, chosen after seeing test results"),
    "validation": (_validation, "round chosen on validation images"),
    "bn": (_all_statistics, f"AVG and WORST by BatchNorm's statistics (evaluate.bn), {LAST_FIVE}"),
    **{
        f"{BN_SCORE}{kind}": (_by_statistics(kind), f"BatchNorm's statistics {description}, {LAST_FIVE}")
        for kind, description in BN_STATISTICS_TEXT.items()
    },
    **{name: (_by_figure(name), LAST_ROUND) for name in FIGURES},
    "clients": (_clients, f"client models after local training, {LAST_FIVE}"),
}
