"""``fedshift sweep``: does the runs of a grid, then compares them."""

import json
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import typer

from fedshift.lab.grid.sweep import grid
from fedshift.lab.grid.sweep.children import POLL_SECONDS
from fedshift.lab.grid.sweep.grid import GridRequest, Point
from fedshift.lab.grid.sweep.progress import Bar, time_left
from fedshift.lab.grid.sweep.records import SWEEP_FILE, Record
from fedshift.lab.grid.sweep.running import Runner, lock
from fedshift_app.run.console import duration
from fedshift_app.run.files import RESULTS_FILE
from fedshift_app.run.versions import versions
from fedshift_core.accuracies import percent
from fedshift_core.atomic_io import write_atomically
from fedshift_core.env import COMMAND
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.paths import user_path
from fedshift_core.plural import plural
from fedshift_core.wire.names import DEPLOYMENT

if TYPE_CHECKING:
    from fedshift.lab.tables.compare import Comparison


def sweep(arguments: Sequence[str], paper: str) -> "Comparison | None":
    """Do all runs of a grid, then compare them; return the comparison.

    Args:
        arguments: ``[EXPERIMENT] [key=value,value ...]``.
        paper: The printed table to compare the runs with; empty for none.

    Raises:
        FedShiftError: If the grid is wrong, before anything starts; or if a run failed, after all others.
        SystemExit: After Ctrl-C or SIGTERM, with 130 or 143.
    """
    request, points, notes, folder = planned(arguments, paper)
    for note in notes:
        typer.echo(note)
    with lock(folder):
        return Sweep(folder, request, points).run(paper)


def planned(arguments: Sequence[str], paper: str = "") -> tuple[GridRequest, list[Point], list[str], Path]:
    """Return a sweep as it was typed, its runs, all checked, notes for the user, and its folder.

    Raises:
        FedShiftError: If the grid or the table are wrong.
    """
    check_paper(paper)
    request = grid.read(arguments)
    points, notes = grid.points(request)
    grid.check(points)
    name = f"sweep-{points[0].config.experiment}-{grid.grid_hash([point.key for point in points])}"
    return request, points, notes, output_dir(request) / name


def check_paper(paper: str) -> None:
    """Refuse a printed table that runs cannot be compared with: now, not after the last run.

    Raises:
        ConfigError: With the reason.
    """
    if paper:
        from fedshift.lab.tables.papers import printed

        printed.get(paper).check_of_runs()


def output_dir(request: GridRequest) -> Path:
    """Return the folder that holds those of sweeps."""
    return user_path(request.values.get("output-dir", ("runs",))[0], "output-dir")


class Sweep(Runner):
    """A sweep in its folder, whose lock the caller holds."""

    def __init__(
        self, folder: Path, request: GridRequest, points: Sequence[Point], notes: tuple[str, ...] = (), mark: str = ""
    ) -> None:
        """Read the state of each run; ``notes`` appear below the comparison."""
        super().__init__(folder, request.options, points, mark)
        self.request, self._notes = request, notes
        self.records = [self.record(point) for point in points]
        if request.options.reuse:
            self._reuse()

    def run(self, paper: str) -> "Comparison | None":
        """Do the unfinished runs, then compare all; return the comparison.

        Raises:
            FederationError: If a run failed.
            SystemExit: After Ctrl-C or SIGTERM.
        """
        typer.echo(f"sweep folder: {self.folder}")
        finished, left = len(self._in("finished")), self._in("waiting")
        typer.echo(f"{plural(len(self.records), 'run')}, {finished} of them finished")
        with self.working([record.point for record in left]), Bar(len(self.records), finished) as bar:
            self._work(bar, deque(left))
        failed = self._in("failed")
        for record in failed:
            typer.echo(f"failed: {record.point.label}: {record.error} (log: {record.log})", err=True)
        comparison = self.compare(paper) if self._in("finished") else None
        typer.echo(f"sweep folder: {self.folder}")
        if failed:
            labels = ", ".join(record.point.label for record in failed)
            raise FederationError(f"{len(failed)} of {plural(len(self.records), 'run')} failed: {labels}")
        return comparison

    def _work(self, bar: Bar, queue: deque[Record]) -> None:
        self.save()
        while queue or self.running:
            while queue and len(self.running) < self.jobs:
                self.start(queue.popleft(), len(queue))
                self.save()
            bar.show([record.point.label for record in self.running], self._left(queue))
            ended = [record for record in self.running if record.child is not None and record.child.ended]
            for record in ended:
                self.settle(record)
                self.save()
                if record.state == "waiting":
                    queue.append(record)
                elif record.state == "finished":
                    bar.advance(bar.grid)
                    self._show_progress(record, queue)
            if not ended:
                sleep(POLL_SECONDS)

    def _reuse(self) -> None:
        """Take finished runs with the same configuration and versions from other places of the output folder."""
        places = [self.folder.parent, *sorted(self.folder.parent.glob("sweep-*/"))]
        waiting = {record.point.key: record for record in self.records if record.state != "finished"}
        for path, key, stored in (run for place in places if place != self.folder for run in self.folders(place)):
            if key not in waiting or not (path / RESULTS_FILE).is_file() or stored["engine"] == DEPLOYMENT:
                continue
            record = waiting[key]
            why = "it was made with other versions"
            if stored.get("versions") == versions(record.point.config):
                parts = self.images.changed(record.point.config, stored)
                why = parts and f"{parts} had other images"
            if why:
                typer.echo(f"{record.point.label}: {path} is not reused: {why}")
                continue
            del waiting[key]
            record.state, record.folder, record.reused = "finished", path, True
            record.seconds = record.results()["seconds"]
            typer.echo(f"{record.point.label}: reused from {path}")

    def _in(self, state: str) -> list[Record]:
        return [record for record in self.records if record.state == state]

    def _left(self, queue: Sequence[Record]) -> float | None:
        return time_left(self._in("finished"), self.running, queue, self.jobs)

    def _show_progress(self, record: Record, queue: Sequence[Record]) -> None:
        total, left = str(len(self.records)), self._left(queue)
        typer.echo(
            f"[{len(self._in('finished')):>{len(total)}}/{total}] {record.point.label}: avg "
            f"{percent(record.results()['avg'])}, {duration(record.seconds)}"
            + ("" if left is None else f"; left {duration(left)}")
        )

    def done(self) -> str:
        """Return how many runs are finished."""
        return f", {len(self._in('finished'))} of {plural(len(self.records), 'run is', 'runs are')} finished"

    def save(self) -> None:
        """Write ``sweep.json``."""
        content = {
            "command": os.environ.get(COMMAND, ""),
            "experiment": self.records[0].point.config.experiment,
            "grid": self.request.values,
            **self.options.model_dump(include=set(grid.Options.model_fields)),
            "jobs": self.jobs,
            "points": [record.saved(self.folder) for record in self.records],
        }
        write_atomically(self.folder / SWEEP_FILE, json.dumps(content, indent=2) + "\n")

    def compare(self, paper: str) -> "Comparison | None":
        """Compare the finished runs, write the comparison and print it."""
        from fedshift.lab.tables.compare import compare  # torch: only when runs are compared

        runs = [record.folder for record in self._in("finished") if record.folder is not None]
        # The user requested the other differences that the grid varies; any further difference is still refused.
        more = any(key != "seed" and key.split(".")[0] != "method" for key in self.request.varied)
        failed = (f"in no row, failed: {record.point.label}: {record.error}" for record in self._in("failed"))
        notes = (*self._notes, *failed)
        try:
            comparison = compare(runs, paper=paper, allow_different=more)
        except ConfigError as error:
            if more:
                raise
            # After hours of runs the user gets a table anyway.
            comparison = compare(runs, paper=paper, allow_different=True)
            notes = (*notes, str(error))
        if notes:
            numbers = comparison.numbers
            comparison = replace(comparison, numbers=replace(numbers, notes=(*numbers.notes, *notes)))
        page = self.folder / "compare.html"
        write_atomically(self.folder / "compare.md", comparison.markdown())
        write_atomically(self.folder / "compare.csv", comparison.csv())
        write_atomically(page, comparison.html(page))
        typer.echo(comparison.text())
        typer.echo(f"comparison: {page}")
        return comparison
