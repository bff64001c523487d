"""``fedshift tune``: equally many trials for every method, then a comparison of all, tuned and default.

The trials of a method run one after another, each guided by those before it; methods run in parallel. So the
order of their ends decides nothing. A search may be killed at any moment, and resumes when the same command is given
again.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedshift.lab.grid.sweep import children, forks, grid, sweeping
from fedshift.lab.grid.sweep.children import MARK, POLL_SECONDS
from fedshift.lab.grid.sweep.forks import NO_FORKS
from fedshift.lab.grid.sweep.grid import CheckData, CheckModel, Point
from fedshift.lab.grid.sweep.progress import Timed, time_left
from fedshift.lab.grid.sweep.records import Images
from fedshift.lab.grid.tune import requested as tune_requested
from fedshift.lab.grid.tune import study
from fedshift.lab.grid.tune.requested import Plan, Request
from fedshift.lab.grid.tune.study import COMPLETE, FAILED, PRUNED, Search
from fedshift.lab.grid.tune.trials import Going, score
from fedshift.run.engine import inline
from fedshift.run.launch import processes, worker_count
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.run.console import duration
from fedshift_app.run.files import CONFIG_FILE
from fedshift_core.accuracies import percent
from fedshift_core.atomic_io import write_atomically
from fedshift_core.cells import csv_text
from fedshift_core.env import COMMAND
from fedshift_core.errors import ConfigError, FederationError, FedShiftError
from fedshift_core.limits import shortened, some
from fedshift_core.plural import plural

if TYPE_CHECKING:
    from fedshift.lab.tables.compare import Comparison

MOST_NAMED = 3  # trials in a note
STORE, TABLE, SUMMARY, TRIALS = "trials.log", "trials.csv", "tune.json", "trials"


def tune(
    arguments: Sequence[str], paper: str, check_data: CheckData, check_model: CheckModel = grid.unchecked
) -> "tuple[Path, Comparison | None]":
    """Search each method's values, then compare the methods; return the folder of the search and the comparison.

    Args:
        arguments: ``[EXPERIMENT] [method=A,B] budget=N [KEY=VALUE ...]``.
        paper: The printed table to compare the runs with; empty for none.
        check_data: Checks the data of one run.
        check_model: Checks whether the method and the network of one run go together.

    Raises:
        FedShiftError: If anything is wrong, before anything starts; or if a method or a run failed, after all others.
        SystemExit: After Ctrl-C or SIGTERM, with 130 or 143.
    """
    study.check_installed()
    if paper:
        from fedshift.lab.tables.papers import printed

        printed.get(paper).check_of_runs()
    request = tune_requested.read(arguments, check_data)
    for plan in request.plans:
        try:
            check_model(plan.base.config)
        except FedShiftError as error:
            raise type(error)(f"{shortened(plan.label)}: {error}") from None
    given, _ = parse_arguments([f"output-dir={value}" for value in request.grid_request.values.get("output-dir", ())])
    experiment = request.plans[0].base.config.experiment
    folder = Path(given["output-dir"]) / f"tune-{experiment}-{request.key}"
    for note in request.notes:
        typer.echo(note)
    held = sweeping.lock(folder)
    try:
        return folder, Tuning(folder, request).run(paper)
    finally:
        held.release()


def summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a search: its methods, each with its space, its own values and its best trial."""
    content: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    return content


@dataclass
class Method:
    """The state of a method's search.

    Attributes:
        plan: The method and its search space.
        search: Its trials.
        going: The trial in progress.
        problem: Why the method is given up; empty for one that is not.
    """

    plan: Plan
    search: Search
    going: Going | None = None
    problem: str = field(default="")


class Tuning:
    """A search in its folder, whose lock the caller holds."""

    def __init__(self, folder: Path, request: Request) -> None:
        """Read the state of each search."""
        self.folder, self.request = folder, request
        self._images = Images()  # read once for all trials
        if ended := children.end_leftovers(str(folder), "search"):
            typer.echo(ended)
        store = study.Store(folder / STORE)
        self.methods = [
            Method(plan, Search(
                store, plan.method, plan.space, plan.default, seed=plan.base.config.seed,
                rounds=plan.rounds, pruning=request.options.pruning,
            )) for plan in request.plans
        ]  # fmt: skip
        self._forks = NO_FORKS
        self._jobs = request.grid_request.options.jobs or sweeping.usual_jobs([plan.base for plan in request.plans])

    def run(self, paper: str) -> "Comparison | None":
        """Do the remaining trials, then the runs to compare; return the comparison.

        Raises:
            FederationError: If a method was given up, or a run failed.
            SystemExit: After Ctrl-C or SIGTERM.
        """
        typer.echo(f"search folder: {self.folder}")
        typer.echo(
            f"{plural(len(self.methods), 'method')}, {plural(self.request.options.budget, 'trial')} each, by "
            f"validation images; {sum(map(self._ended, self.methods))} are done"
        )
        with (
            forks.begun(self._left(), children.environment(str(self.folder), alone=self._jobs == 1)) as self._forks,
            children.guarded(self._stop),
        ):
            self._search()
        chosen, notes = self._chosen()
        for note in notes:
            typer.echo(note)
        comparison = None
        given_up = [method for method in self.methods if method.problem]
        if len(given_up) < len(self.methods):
            lost = {method.plan.method for method in given_up}
            points = [p for p in self.request.finals(chosen) if p.config.method["name"] not in lost]
            sweep = sweeping.Sweep(self.folder, self.request.grid_request, points, notes=tuple(notes))
            comparison = sweep.run(paper)
        if given_up:
            reasons = "; ".join(f"{method.plan.label}: {method.problem}" for method in given_up)
            raise FederationError(f"{len(given_up)} of {plural(len(self.methods), 'method')} failed: {reasons}")
        return comparison

    def _left(self) -> list[Point]:
        """Return the method's own run for each trial that is left."""
        return [method.plan.base for method in self.methods for _ in range(self._budget(method) - self._ended(method))]

    def _search(self) -> None:
        self._save()
        while True:
            for method in self.methods:
                if method.going is None and self._running < self._jobs and self._has_more(method):
                    self._start(method)
            going = [method for method in self.methods if method.going is not None]
            if not going:
                return
            for method in going:
                self._poll(method)
            time.sleep(POLL_SECONDS)

    @property
    def _running(self) -> int:
        return sum(method.going is not None for method in self.methods)

    def _ended(self, method: Method) -> int:
        """Return how many trials of the budget are done."""
        ended = [trial for trial in method.search.trials() if trial.state != study.RUNNING]
        return min(len(ended), self.request.options.budget)

    def _has_more(self, method: Method) -> bool:
        return not method.problem and self._ended(method) < self._budget(method)

    def _budget(self, method: Method) -> int:
        """Return how many trials a method has in all: one where there is nothing to search."""
        return self.request.options.budget if method.plan.space else 1

    def _start(self, method: Method) -> None:
        number = method.search.next()
        point = method.plan.trial(method.search.values(number))
        place = self.folder / TRIALS / f"{method.plan.method}-{number:04d}"
        method.going = Going(number, point, place, self.folder, self._images)
        if not method.going.finished:  # else this process was killed before it could note that
            method.going.start(self._workers(method.going), self._jobs == 1, self._forks)

    def _workers(self, going: Going) -> int | None:
        """Return the number of workers of a trial: the cores are shared by the parallel trials."""
        launch = going.point.launch
        if launch.get("engine") != inline.NAME or worker_count.requested(launch) is not None:
            return None
        waiting = sum(self._has_more(method) for method in self.methods)
        return max(1, min(self._jobs, worker_count.cores()) // max(1, min(waiting, self._jobs)))

    def _poll(self, method: Method) -> None:
        """Check on a trial: report its rounds, end it early, or record its result."""
        going = method.going
        assert going is not None
        ended = going.child is None or going.child.ended
        if going.look() or ended:
            stopped = method.search.report(going.number, going.by_round)
            if stopped is not None:
                if going.child is not None:
                    children.stop([going.child])
                    going.child.clean_up()
                self._end(method, PRUNED, f"ended early after round {stopped}")
                return
        if not ended:
            return
        if going.child is not None and going.child.process.returncode:
            going.child.clean_up()
        if going.finished:
            self._finish(method, going)
        else:
            self._failed(method, going)

    def _finish(self, method: Method, going: Going) -> None:
        value = score(going.by_round, method.plan.base.config.keep)
        if value is None:
            raise ConfigError(
                f"{method.plan.label}: no node has a validation image; allocation.validation_fraction="
                f"{method.plan.base.config.allocation.validation_fraction:g} of their images is less than one"
            )
        self._end(method, COMPLETE, f"validation {percent(value)}", value)

    def _failed(self, method: Method, going: Going) -> None:
        assert going.child is not None
        error = shortened(going.child.last_error(), 300)
        if going.attempts <= self.request.grid_request.options.retries and not going.child.refused:
            typer.echo(f"{method.plan.label} {going.number}: failed, tried again: {error} (log: {going.log})", err=True)
            going.start(self._workers(going), self._jobs == 1, self._forks)
            return
        method.search.note(going.number, **{study.ERROR: error})
        if going.number == 0:  # the values cannot be the cause
            method.problem = f"its first trial failed: {error} (log: {going.log})"
        self._end(method, FAILED, f"failed: {error}")

    def _end(self, method: Method, state: str, outcome: str, value: float | None = None) -> None:
        going = method.going
        assert going is not None
        method.search.note(going.number, **going.notes())
        if method.problem:  # the same command gives it another chance
            method.going = None
            return
        method.search.end(going.number, state, value)
        method.going = None
        going.tidy()
        self._save()
        best = method.search.best(self.request.options.budget)
        best_so_far = "" if best is None else f" (best {percent(best.validation)}, trial {best.number})"
        budget = self.request.options.budget
        seconds = self._seconds_left()
        left = "" if seconds is None else f"; trials left {duration(seconds)}"
        done = f"[{self._ended(method)}/{budget}]"
        typer.echo(f"{method.plan.label} {done} trial {going.number}: {outcome}{best_so_far}{left}")

    def _seconds_left(self) -> float | None:
        """Estimate the seconds until the last trial ends, by those that have ended; None if none is left or known.

        Trials of one method run one after another, so the method with the most work bounds the rest.
        """
        known: list[Timed] = []
        running: list[tuple[Timed, float]] = []
        waiting: list[Timed] = []
        for method in self.methods:
            one = Timed(method.plan.method, 1, 0.0)
            ended = [trial for trial in method.search.trials() if trial.state != study.RUNNING]
            seconds = [float(trial.notes[study.SECONDS]) for trial in ended if study.SECONDS in trial.notes]
            known += [one._replace(seconds=each) for each in seconds]
            if method.going is not None and method.going.child is not None:
                running.append((one, method.going.child.seconds))
            if self._has_more(method):
                waiting += [one] * (self._budget(method) - len(ended) - (method.going is not None))
        if not running and not waiting:
            return None
        alone = [
            time_left(known, [run for run in running if run[0] == one], [each for each in waiting if each == one], 1)
            for one in {*waiting, *(run for run, _ in running)}
        ]
        together = time_left(known, running, waiting, self._jobs)
        return None if together is None else max(together, *(seconds or 0.0 for seconds in alone))

    def _stop(self) -> str:
        try:
            children.stop([m.going.child for m in self.methods if m.going is not None and m.going.child is not None])
        finally:  # also after a second Ctrl-C
            processes.stop_marked(MARK, str(self.folder))
            self._save()
        return ""

    def _chosen(self) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
        """Return the chosen values of each method, and notes for the user, one per line."""
        chosen: dict[str, Mapping[str, Any]] = {}
        notes = []
        for method in self.methods:
            name, best = method.plan.method, method.search.best(self.request.options.budget)
            if method.problem or best is None:
                continue
            if best.number:
                chosen[name] = best.values
            elif method.plan.space:
                notes.append(
                    f"{method.plan.label}: none of its {plural(self._ended(method), 'trial')} was better on "
                    f"validation images than its own values ({percent(best.validation)}); its one row is both"
                )
        return chosen, [*notes, *self._other_images()]

    def _other_images(self) -> list[str]:
        """Return a line for each group of trials on different images, and one for those on others than today's."""
        from fedshift.lab.tables.results import differences
        from fedshift.lab.tables.results.loading import read_config

        trials = [
            (self.folder / str(trial.notes[study.RUN]), method.plan.base.config)
            for method in self.methods
            for trial in method.search.trials()
            if trial.notes.get(study.RUN)
        ]
        trials = [(folder, config) for folder, config in trials if (folder / CONFIG_FILE).is_file()]
        lines = [
            f"values were chosen by trials that are not comparable: {line}"
            for line in differences.unlike_folders(folder for folder, _ in trials)
        ]
        changed = {folder.name: self._images.changed(config, read_config(folder)) for folder, config in trials}
        if others := [name for name, parts in changed.items() if parts]:
            lines.append(
                f"values were chosen by trials on other images than today's: {changed[others[0]]} in "
                f"{some(others, MOST_NAMED)}; to search again, remove {self.folder / STORE}"
            )
        return lines

    def _save(self) -> None:
        """Write the table and the summary; the store holds the searches themselves."""
        rows = []
        keys = list(dict.fromkeys(key for method in self.methods for key in method.plan.space))
        summary: dict[str, Any] = {
            "command": os.environ.get(COMMAND, ""), **self.request.options.model_dump(),
            "seed": self.request.plans[0].base.config.seed, "methods": {},
        }  # fmt: skip
        for method in self.methods:
            plan, best = method.plan, method.search.best(self.request.options.budget)
            summary["methods"][plan.method] = {
                "space": {key: place.as_yaml() for key, place in plan.space.items()}, "default": plan.default,
                "best": None if best is None else
                {"trial": best.number, "validation": best.validation, "values": {**plan.default, **best.values}},
            }  # fmt: skip
            for trial in method.search.trials():
                values = {**plan.default, **trial.values}
                notes = [trial.notes.get(key, "") for key in (study.ROUNDS, study.SECONDS, study.RUN, study.ERROR)]
                value = "" if trial.validation is None else trial.validation
                rows.append(
                    [plan.label, trial.number, trial.state, value, *notes, *(values.get(key, "") for key in keys)]
                )
        head = ["method", "trial", "state", "validation", "rounds", "seconds", "run", "error", *keys]
        write_atomically(self.folder / TABLE, csv_text([head, *rows]))
        write_atomically(self.folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
