"""The search of one method by Optuna: next values, early ends, best values.

The tried values depend only on the numbers of the trials before: each trial's draws have a seed of their
own, so that a search that was interrupted goes on as it would have. The first trial is the method as it is.
"""

import contextlib
import importlib.util
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift_core.errors import ConfigError
from fedshift_core.ranges import Range
from fedshift_core.seeding import torch_seed

#: So many trials, the first included, are drawn at random before results guide the search.
STARTUP = 5
DIGITS = 3  # of a value that is tried
RUN, ERROR, SECONDS, ROUNDS = "run", "error", "seconds", "rounds"  # what a trial is noted with

COMPLETE, PRUNED, FAILED, RUNNING = "complete", "pruned", "failed", "running"


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


class Store:
    """The file of all searches of a folder; one process at a time uses it."""

    def __init__(self, path: Path) -> None:
        """Open the file and remove a last line that a kill left incomplete.

        Raises:
            ConfigError: If it is damaged.
        """
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalStorage

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with contextlib.suppress(FileNotFoundError):
            path.with_name(f"{path.name}.lock").unlink()  # of a process that was killed: this one holds the folder
        if path.exists():
            _cut_off(path)
        try:
            self.storage: Any = JournalStorage(JournalFileBackend(str(path)))
        except (ValueError, KeyError, AssertionError) as error:
            raise ConfigError(
                f"{path} is damaged: {error}; remove it to search again; the runs of trials stay"
            ) from None


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
    """The search of one method."""

    def __init__(
        self,
        store: Store,
        method: str,
        space: Mapping[str, Range],
        default: Mapping[str, Any],
        *,
        seed: int,
        rounds: int,
        pruning: bool,
    ) -> None:
        """Begin the search, or resume it.

        Args:
            store: Where it is kept.
            method: Its name.
            space: The ranges to search, by dotted key.
            default: The method's own values, by dotted key.
            seed: Of the run.
            rounds: Of a trial.
            pruning: End trials early that are worse than the median.
        """
        import optuna

        self.method, self._seed, self._default = method, seed, dict(default)
        self._axes = {key: _distribution(space[key]) for key in sorted(space)}
        self._known = {key: axis for key, axis in self._axes.items() if space[key].holds(default.get(key))}
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=max(1, rounds // 4))
        self._study = optuna.create_study(
            study_name=method,
            storage=store.storage,
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
        self._study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=STARTUP, seed=torch_seed(self._seed, f"tune-{self.method}", number) % 2**32
        )
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
        import optuna

        states = optuna.trial.TrialState
        as_theirs = {COMPLETE: states.COMPLETE, PRUNED: states.PRUNED, FAILED: states.FAIL}
        self._study.tell(number, validation, state=as_theirs[state])

    def best(self, budget: int) -> Trial | None:
        """Return the best complete trial of the first ``budget``, the first of equals; None if there is none."""
        known = [trial for trial in self.trials() if trial.state == COMPLETE and trial.number < budget]
        return max(known, key=lambda trial: trial.validation or 0.0, default=None)

    def _frozen(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]

    def _trial(self, number: int) -> Any:
        import optuna

        return optuna.trial.Trial(self._study, self._frozen(number)._trial_id)


def _as_trial(frozen: Any) -> Trial:
    """Convert a trial of Optuna's."""
    names = {"COMPLETE": COMPLETE, "PRUNED": PRUNED, "FAIL": FAILED, "RUNNING": RUNNING}
    values = {key: rounded(value) for key, value in frozen.params.items()} if frozen.number else {}
    complete = frozen.state.name == "COMPLETE"
    return Trial(
        frozen.number,
        values,
        names[frozen.state.name],
        float(frozen.value) if complete else None,
        dict(frozen.user_attrs),
    )


def rounded(value: Any) -> Any:
    """Return a value rounded to the digits that people read."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _distribution(place: Range) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if place.values:
        return CategoricalDistribution(place.values)
    if place.whole:
        return IntDistribution(int(place.low), int(place.high))
    return FloatDistribution(place.low, place.high, log=place.log)
