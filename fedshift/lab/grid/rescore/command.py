"""The command: scores each run with each combination of keys, in parallel, and prints the new folders."""

import itertools
import math
import multiprocessing
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import typer

from fedshift.lab.grid.rescore import scoring
from fedshift.lab.grid.rescore.keys import OWN
from fedshift.lab.grid.rescore.scoring import Checked
from fedshift.lab.grid.sweep import grid
from fedshift.lab.tables.results.places import held
from fedshift.run.launch import worker_count
from fedshift_app.config.error_messages import explaining
from fedshift_app.run import console, naming
from fedshift_app.run.files import RESULTS_FILE
from fedshift_app.run.versions import own_commit
from fedshift_core.env import COMMIT
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.paths import user_path


def read(arguments: Sequence[str]) -> tuple[list[tuple[Path, list[str]]], Path, int]:
    """Read ``RUN ... [KEY=VALUE,VALUE ...] [output-dir=DIR] [jobs=N]``.

    Returns:
        Each run with each combination of keys, where run folders are made, and how many runs are scored at a time.

    Raises:
        ConfigError: If there is no run, or a key is wrong or comes twice.
    """
    values, own = grid.values_of([word for word in arguments if "=" in word], OWN)
    runs = list(dict.fromkeys(run for word in arguments if "=" not in word for run in _runs(word)))
    if not runs:
        raise ConfigError("rescore: name one or more run folders, or a folder that holds some")
    with explaining():
        jobs = grid.Options.model_validate({"jobs": own.get("jobs")}).jobs or worker_count.places(1)
    if (number := len(runs) * math.prod(map(len, values.values()))) > grid.MOST_RUNS:
        raise ConfigError(f"rescore: at most {grid.MOST_RUNS} runs with their values, found {number}")
    words = [[f"{key}={value}" for value in values[key]] for key in values]
    scorings = [(run, [*given]) for run in runs for given in itertools.product(*words)]
    return scorings, user_path(own.get("output-dir", "runs"), "output-dir"), jobs


def _runs(named: str) -> list[Path]:
    path = user_path(named, "rescore")
    folders = _folders(path)
    if not folders:
        raise ConfigError(f"{path} is not a run folder and contains none")
    taken = [folder for folder in folders if folder == path or scoring.is_trained(folder)]
    unfinished = [folder.name for folder in folders if not (folder / RESULTS_FILE).is_file() and folder not in taken]
    if unfinished:
        typer.echo(f"left out, not finished: {', '.join(unfinished)}", err=True)
    return taken


def _folders(path: Path) -> list[Path]:
    """Return the run folders that a path stands for; none without a folder there."""
    return [folder for folder in held(path) if folder.is_dir()] if path.is_dir() else []


def rescore(arguments: Sequence[str]) -> None:
    """Score finished runs again and print the new folders; scorings done before are listed, not repeated.

    Raises:
        FedShiftError: If the keys or the runs are wrong, before anything is scored; if a run cannot be scored, after
            those before it.
    """
    scorings, output_dir, jobs = read(arguments)
    naming.check_place(output_dir)
    checked = [scoring.check(*given) for given in scorings]
    os.environ[COMMIT] = own_commit()
    before = _folders(output_dir)
    left: list[Checked] = []
    for candidate in checked:
        if (folder := scoring.done(candidate, before)) is not None:
            typer.echo(f"{candidate.label}: done before: {shown(folder, WHOLE_PATH)}")
        else:
            left.append(candidate)
    score = partial(scoring.score, output_dir=output_dir, command=shlex.join(["fedshift", "rescore", *arguments]))
    new = _scored(left, score, min(jobs, len(left)))
    for candidate, folder in zip(left, new, strict=True):
        typer.echo(f"{candidate.label}: {scoring.average(folder)}: {shown(folder, WHOLE_PATH)}")


def _scored(left: Sequence[Checked], score: Callable[[Checked], Path], jobs: int) -> Iterator[Path]:
    if jobs < 2:
        console.set_up()
        for checked in left:
            with console.quiet_flower():
                yield score(checked)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_alone) as pool:
        try:
            yield from pool.map(score, left)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _alone() -> None:
    """Give a parallel process one thread, as a sweep does."""
    import torch

    torch.set_num_threads(1)
    console.set_up()
