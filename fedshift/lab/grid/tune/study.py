"""The search of one method by Optuna: next values, early ends, best values.

The tried values depend only on the numbers of the trials before: each trial's draws have a seed of their
own, so that a search that was interrupted goes on as it would have. The first trial is the method as it is.
"""

import importlib.util
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.lab.grid.sweep.records import Record
from fedshift.lab.grid.tune.requested import Plan
from fedshift_core.errors import ConfigError
from fedshift_core.ranges import Range
from fedshift_core.seeding import torch_seed

#: So many trials, the first included, are drawn at random before results guide the search.
STARTUP = 5
DIGITS = 3  # of a value that is tried
COMPLETE, PRUNED, FAILED, RUNNING = "complete", "pruned", "failed", "running"
STATES = {"COMPLETE": COMPLETE, "PRUNED": PRUNED, "FAIL": FAILED, "RUNNING": RUNNING}  # by Optuna's names


@dataclass(frozen=True)
class Trial:
    """A trial as it stands.

    Attributes:
        number: From 0, the method as it is.
        values: What it tries, by dotted key; empty for the first.
        state: ``complete``, ``pruned`` (ended early), ``failed`` or ``running``.
        validation: Accuracy on validation images in percent, of a complete one.
        notes: ``run``, ``error``, ``seconds``, ``rounds``.
    """

    number: int
    values: Mapping[str, Any]
    state: str
    validation: float | None
    notes: Mapping[str, Any]


def check_installed() -> None:
    """Refuse to search without Optuna.

    Raises:
        ConfigError: With the command that installs it.
    """
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError('fedshift tune: Optuna is not installed; run: pip install "fedshift[tune]"')


def opened(path: Path) -> Any:
    """Return Optuna's storage of all searches of a folder, without a last line that a kill left incomplete.

    One process at a time uses it.

    Raises:
        ConfigError: If the file is damaged.
    """
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)  # of a process that was killed: this holds the folder
    if path.exists():
        _cut_off(path)
    try:
        return JournalStorage(JournalFileBackend(str(path)))
    except (ValueError, KeyError, AssertionError) as error:
        raise ConfigError(f"{path} is damaged: {error}; remove it to search again; the runs of trials stay") from None


def _cut_off(path: Path) -> None:
    """Remove the last line of a file if it is incomplete."""
    data = path.read_bytes()
    complete = data[: data.rfind(b"\n") + 1]
    last = complete[complete.rfind(b"\n", 0, -1) + 1 :]
    try:
        if last:
            json.loads(last)
    except ValueError:
        complete = complete[: len(complete) - len(last)]
    if complete != data:
        path.write_bytes(complete)


class Search:
    """The search of one method.

    Attributes:
        plan: The method and its search space.
        budget: How many trials it has in all: one where there is nothing to search.
        number: Of the trial in progress.
        trial: Its run; None between two trials.
        by_round: Its validation accuracy so far.
        problem: Why the method is given up; empty for one that is not.
    """

    def __init__(self, storage: Any, plan: Plan, *, budget: int, pruning: bool) -> None:
        """Begin the search, or resume it.

        Args:
            storage: Where it is kept (:func:`opened`).
            plan: The method and its search space.
            budget: The number of trials of a method that has something to search.
            pruning: End trials early that are worse than the median.
        """
        import optuna

        self.plan, self.budget = plan, budget if plan.space else 1
        self.number, self.by_round, self.problem = 0, dict[int, float](), ""
        self.trial: Record | None = None
        space, default = plan.space, plan.default
        self._axes = {key: _distribution(space[key]) for key in sorted(space)}
        self._known = {key: axis for key, axis in self._axes.items() if space[key].holds(default.get(key))}
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=max(1, plan.rounds // 4))
        self._study = optuna.create_study(
            study_name=plan.method,
            storage=storage,
            direction="maximize",
            load_if_exists=True,
            pruner=pruner if pruning else optuna.pruners.NopPruner(),
        )
        if not self._study.get_trials(deepcopy=False):
            self._study.enqueue_trial({key: default[key] for key in self._known})

    def trials(self) -> list[Trial]:
        """Return all trials that were begun, in their order."""
        return [_as_trial(trial) for trial in self._study.get_trials(deepcopy=False) if trial.state.name != "WAITING"]

    def next(self) -> int:
        """Return the number of the next trial: an interrupted one, or a new one."""
        import optuna

        begun = self.trials()
        left = next((trial.number for trial in begun if trial.state == RUNNING), None)
        number = len(begun) if left is None else left
        seed = torch_seed(self.plan.base.config.seed, f"tune-{self.plan.method}", number) % 2**32
        self._study.sampler = optuna.samplers.TPESampler(n_startup_trials=STARTUP, seed=seed)
        axes = self._axes if number else self._known
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
            if left is None:
                return int(self._study.ask(axes).number)
            for key, axis in axes.items():  # of a kill right after it was begun
                self._trial(number)._suggest(key, axis)
        return number

    def values(self, number: int) -> dict[str, Any]:
        """Return the values of a trial by dotted key; none for the first, which is the method's defaults."""
        return dict(_as_trial(self._frozen(number)).values)

    def report(self, number: int, by_round: Mapping[int, float]) -> int | None:
        """Report a trial's accuracy by round; return the round after which it ends early, None to continue."""
        trial, known = self._trial(number), self._frozen(number).intermediate_values
        if known and trial.should_prune():  # this process was killed before it could end the trial
            return int(max(known))
        for server_round in sorted(by_round):
            if server_round not in known:
                trial.report(by_round[server_round], server_round)
                if trial.should_prune():
                    return server_round
        return None

    def note(self, number: int, **notes: Any) -> None:
        """Store notes on a trial."""
        trial = self._trial(number)
        for key, value in notes.items():
            trial.set_user_attr(key, value)

    def end(self, number: int, state: str, validation: float | None = None) -> None:
        """End a trial."""
        from optuna.trial import TrialState

        self._study.tell(number, validation, state=next(each for each in TrialState if STATES.get(each.name) == state))

    @property
    def ended(self) -> int:
        """Return the number of trials of the budget that are done."""
        return min(sum(trial.state != RUNNING for trial in self.trials()), self.budget)

    @property
    def waits(self) -> bool:
        """Whether its next trial may start."""
        return self.trial is None and not self.problem and self.ended < self.budget

    @property
    def best(self) -> Trial | None:
        """The best complete trial of the budget, the first of equals; None if there is none."""
        known = [trial for trial in self.trials() if trial.state == COMPLETE and trial.number < self.budget]
        return max(known, key=lambda trial: trial.validation or 0.0, default=None)

    def _frozen(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]

    def _trial(self, number: int) -> Any:
        import optuna

        return optuna.trial.Trial(self._study, self._frozen(number)._trial_id)


def _as_trial(frozen: Any) -> Trial:
    """Convert a trial of Optuna's."""
    values = {
        key: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for key, value in frozen.params.items()
        if frozen.number
    }
    state = STATES[frozen.state.name]
    validation = float(frozen.value) if state == COMPLETE else None
    return Trial(frozen.number, values, state, validation, frozen.user_attrs)


def _distribution(place: Range) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if place.values:
        return CategoricalDistribution(place.values)
    if place.whole:
        return IntDistribution(int(place.low), int(place.high))
    return FloatDistribution(place.low, place.high, log=place.log)
