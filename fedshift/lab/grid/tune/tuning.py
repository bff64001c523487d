"""``fedshift tune``: equally many trials for every method, then a comparison of all, tuned and default.

The trials of a method run one after another, each guided by those before it; methods run in parallel. So the
order of their ends decides nothing.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fedshift.lab.grid.sweep import grid, sweeping
from fedshift.lab.grid.sweep.children import POLL_SECONDS
from fedshift.lab.grid.sweep.records import Record
from fedshift.lab.grid.sweep.running import Runner, lock
from fedshift.lab.grid.tune import requested as tune_requested
from fedshift.lab.grid.tune import study
from fedshift.lab.grid.tune.requested import Request
from fedshift.lab.grid.tune.study import COMPLETE, FAILED, PRUNED, Search
from fedshift_app.run import checkpoints, files, model_selection, trackers
from fedshift_app.run.files import CONFIG_FILE, METRICS_FILE
from fedshift_core.accuracies import mean, percent
from fedshift_core.atomic_io import write_atomically
from fedshift_core.cells import csv_text
from fedshift_core.env import COMMAND
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.limits import shortened, some
from fedshift_core.plural import plural
from fedshift_core.rounds import LAST_ROUNDS
from fedshift_core.yaml_files import read_yaml

if TYPE_CHECKING:
    from fedshift.lab.tables.compare import Comparison

MOST_NAMED = 3  # trials in a note
STORE, TABLE, SUMMARY, TRIALS = "trials.log", "trials.csv", "tune.json", "trials"


def tune(arguments: Sequence[str], paper: str) -> "tuple[Path, Comparison | None]":
    """Search each method's values, then compare the methods; return the folder of the search and the comparison.

    Args:
        arguments: ``[EXPERIMENT] [method=A,B] budget=N [KEY=VALUE ...]``.
        paper: The printed table to compare the runs with; empty for none.

    Raises:
        FedShiftError: If anything is wrong, before anything starts; or if a method or a run failed, after all others.
        SystemExit: After Ctrl-C or SIGTERM, with 130 or 143.
    """
    study.check_installed()
    sweeping.check_paper(paper)
    request = tune_requested.read(arguments)
    grid.check(plan.base for plan in request.plans)
    for note in request.notes:
        typer.echo(note)
    name = f"tune-{request.plans[0].base.config.experiment}-{request.key}"
    folder = sweeping.output_dir(request.grid_request) / name
    with lock(folder):
        return folder, Tuning(folder, request).search(paper)


def summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a search: its methods, each with its space, its own values and its best trial."""
    return dict(files.read_json(folder / SUMMARY))


def averages(folder: Path | None) -> dict[int, float]:
    """Return the validation accuracy by round, in percent: the mean over domains; none without a run folder.

    Only the key ``validation`` of ``metrics.jsonl`` is read. A round that lacks a domain of other rounds is left out:
    a mean over the rest would be another quantity.
    """
    lines = [] if folder is None else files.full_lines(folder / METRICS_FILE)
    given = {int(line["round"]): line.get("validation") or {} for line in lines}
    scores = {number: {name: v for name, v in of.items() if v is not None} for number, of in given.items()}
    domains = set[str]().union(*scores.values())
    return {number: mean(of.values()) or 0.0 for number, of in scores.items() if of and of.keys() == domains}


def score(by_round: Mapping[int, float], keep: str) -> float | None:
    """Return the value of a finished trial: the mean of the last five rounds; None without rounds.

    A run that keeps the best round by validation has the value of that round.
    """
    values = [by_round[number] for number in sorted(by_round)]
    if keep == model_selection.BEST and values:
        return max(values)
    return mean(values[-LAST_ROUNDS:])


class Tuning(Runner):
    """A search in its folder, whose lock the caller holds."""

    what = "search"

    def __init__(self, folder: Path, request: Request) -> None:
        """Read the state of each search."""
        super().__init__(folder, request.grid_request.options, [plan.base for plan in request.plans])
        self.request = request
        self.env = {trackers.PLACE: trackers.store_in(folder)}  # one store for all trials, and the runs compared
        storage, options = study.opened(folder / STORE), request.options
        self.searches = [
            Search(storage, plan, budget=options.budget, pruning=options.pruning) for plan in request.plans
        ]

    def search(self, paper: str) -> "Comparison | None":
        """Do the remaining trials, then the runs to compare; return the comparison.

        Raises:
            FederationError: If a method was given up, or a run failed.
            SystemExit: After Ctrl-C or SIGTERM.
        """
        typer.echo(f"search folder: {self.folder}")
        typer.echo(
            f"{plural(len(self.searches), 'method')}, {plural(self.request.options.budget, 'trial')} each, by "
            f"validation images; {sum(search.ended for search in self.searches)} are done"
        )
        left = [search.plan.base for search in self.searches for _ in range(search.budget - search.ended)]
        with self.working(left):
            self._work()
        chosen, notes = self._chosen()
        for note in notes:
            typer.echo(note)
        comparison = None
        given_up = {m.plan.method: f"{m.plan.label}: {m.problem}" for m in self.searches if m.problem}
        if points := [p for p in self.request.finals(chosen) if p.config.method["name"] not in given_up]:
            comparison = sweeping.Sweep(self.folder, self.request.grid_request, points, tuple(notes)).run(paper)
        if given_up:
            of = plural(len(self.searches), "method")
            raise FederationError(f"{len(given_up)} of {of} failed: {'; '.join(given_up.values())}")
        return comparison

    def _work(self) -> None:
        self.save()
        while True:
            for search in self.searches:
                if len(self.running) < self.jobs and search.waits:
                    self._begin(search)
            going = [(search, search.trial) for search in self.searches if search.trial is not None]
            if not going:
                return
            for search, trial in going:
                self._poll(search, trial)
            time.sleep(POLL_SECONDS)

    def _begin(self, search: Search) -> None:
        search.number, search.by_round = search.next(), {}
        point = search.plan.trial(search.values(search.number))
        search.trial = self.record(point, self.folder / TRIALS / f"{search.plan.method}-{search.number:04d}")
        # Those of other values, where its store is gone.
        search.trial.left_out |= _folders(search.trial) - {search.trial.folder}
        if search.trial.state != "finished":  # else this process was killed before it could note that
            self.start(search.trial, sum(other.waits for other in self.searches))

    def _poll(self, search: Search, trial: Record) -> None:
        """Check on a trial: report its rounds, end it early, or record its result."""
        ended = trial.child is None or trial.child.ended
        if trial.folder is None:
            trial.folder = max(_folders(trial) - trial.left_out, default=None)
        search.by_round = averages(trial.folder)
        if (stopped := search.report(search.number, search.by_round)) is not None:
            self.end([trial])
            self._note(search, trial, PRUNED, f"ended early after round {stopped}")
        elif ended:
            if trial in self.running:
                self.settle(trial)
            if trial.state == "waiting":
                self.start(trial, sum(other.waits for other in self.searches))
            else:
                self._settled(search, trial)

    def _settled(self, search: Search, trial: Record) -> None:
        """Record the result of a trial that is finished or has failed."""
        config = search.plan.base.config
        if trial.state == "failed":
            error = shortened(trial.error or "", 300)
            search.note(search.number, error=error)
            if search.number == 0:  # the values cannot be the cause
                search.problem = f"its first trial failed: {error} (log: {trial.log})"
            self._note(search, trial, FAILED, f"failed: {error}")
            return
        search.by_round = averages(trial.folder)
        if (value := score(search.by_round, config.keep)) is None:
            raise ConfigError(
                f"{search.plan.label}: no node has a validation image; allocation.validation_fraction="
                f"{config.allocation.validation_fraction:g} of their images is less than one"
            )
        self._note(search, trial, COMPLETE, f"validation {percent(value)}", value)

    def _note(self, search: Search, trial: Record, state: str, outcome: str, value: float | None = None) -> None:
        """Note the end of a trial, and remove its weights: nobody continues it."""
        search.trial = None
        if trial in self.running:
            self.running.remove(trial)
        search.note(
            search.number,
            run=str(trial.folder.relative_to(self.folder)) if trial.folder is not None else "",
            rounds=max(search.by_round, default=0),
            seconds=round(trial.child.seconds if trial.child is not None else 0.0, 1),
        )
        if search.problem:  # the same command gives it another chance
            return
        search.end(search.number, state, value)
        if trial.folder is not None:
            shutil.rmtree(trial.folder / checkpoints.FOLDER, ignore_errors=True)
        self.save()
        best = search.best
        best_so_far = "" if best is None else f" (best {percent(best.validation)}, trial {best.number})"
        done = f"[{search.ended}/{search.budget}] trial {search.number}"
        typer.echo(f"{search.plan.label} {done}: {outcome}{best_so_far}")

    def _chosen(self) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
        """Return the chosen values of each method, and notes for the user, one per line."""
        chosen: dict[str, Mapping[str, Any]] = {}
        notes = []
        for search in self.searches:
            best = search.best
            if search.problem or best is None:
                continue
            if best.number:
                chosen[search.plan.method] = best.values
            elif search.plan.space:
                notes.append(
                    f"{search.plan.label}: none of its {plural(search.ended, 'trial')} was better on "
                    f"validation images than its own values ({percent(best.validation)}); its one row is both"
                )
        return chosen, [*notes, *self._other_images()]

    def _other_images(self) -> list[str]:
        """Return a line about trials on other images than today's."""
        others: dict[str, str] = {}
        for search in self.searches:
            for name in (trial.notes.get("run") for trial in search.trials()):
                if name and (file := self.folder / name / CONFIG_FILE).is_file():
                    others[name] = self.images.changed(search.plan.base.config, read_yaml(file))
        if not (changed := [name for name, parts in others.items() if parts]):
            return []
        return [
            f"values were chosen by trials on other images than today's: {others[changed[0]]} in "
            f"{some(changed, MOST_NAMED)}; to search again, remove {self.folder / STORE}"
        ]

    def save(self) -> None:
        """Write the table and the summary; the store holds the searches themselves."""
        rows: list[dict[str, Any]] = []
        methods: dict[str, Any] = {}
        for search in self.searches:
            plan, best = search.plan, search.best
            chosen = best and {
                "trial": best.number,
                "validation": best.validation,
                "values": {**plan.default, **best.values},
            }
            space = {key: place.as_yaml() for key, place in plan.space.items()}
            methods[plan.method] = {"space": space, "default": plan.default, "best": chosen}
            rows += [
                {"method": plan.label, "trial": trial.number, "state": trial.state, "validation": trial.validation}
                | {key: trial.notes.get(key) for key in ("rounds", "seconds", "run", "error")}
                | {**plan.default, **trial.values}
                for trial in search.trials()
            ]
        head = list(dict.fromkeys(key for row in rows for key in row))
        write_atomically(self.folder / TABLE, csv_text([head, *([row.get(key) for key in head] for row in rows)]))
        content = {
            "command": os.environ.get(COMMAND, ""),
            **self.request.options.model_dump(include={"budget", "pruning", "trial_rounds"}),
            "seed": self.request.plans[0].base.config.seed,
            "methods": methods,
        }
        write_atomically(self.folder / SUMMARY, json.dumps(content, indent=2) + "\n")


def _folders(trial: Record) -> set[Path]:
    """Return the run folders in a trial's place."""
    return {file.parent for file in trial.place.glob(f"*/{CONFIG_FILE}")}
