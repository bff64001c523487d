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
from fedshift.lab.grid.rescore.scoring import Checked, Question
from fedshift.lab.grid.sweep import grid
from fedshift.lab.tables.results.places import held
from fedshift.run.launch import worker_count
from fedshift_app.config.arguments import not_empty
from fedshift_app.run import console, naming
from fedshift_app.run.files import RESULTS_FILE
from fedshift_app.run.versions import own_commit
from fedshift_core.env import COMMIT
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_CORES, WHOLE_PATH, as_found, shown
from fedshift_core.paths import user_path


def read(arguments: Sequence[str]) -> tuple[list[Question], Path, int]:
    """Read ``RUN ... [KEY=VALUE,VALUE ...] [output-dir=DIR] [jobs=N]``.

    Returns:
        Each run with each combination of values, where run folders are made, and how many runs are scored at a time.

    Raises:
        ConfigError: If there is no run, or a key is wrong or comes twice.
    """
    values, own = grid.values_of([word for word in arguments if "=" in word], OWN, check=not_empty)
    runs = list(dict.fromkeys(run for word in arguments if "=" not in word for run in _runs(word)))
    if not runs:
        raise ConfigError("rescore: name one or more run folders, or a folder that holds some")
    jobs_text = own.get("jobs", str(worker_count.places(1)))
    jobs = int(jobs_text) if jobs_text.isdecimal() else 0
    if not 1 <= jobs <= MOST_CORES:
        raise ConfigError(f"jobs: expected a whole number from 1 to {MOST_CORES}, found {as_found(jobs_text)}")
    if (number := len(runs) * math.prod(map(len, values.values()))) > grid.MOST_RUNS:
        raise ConfigError(f"rescore: at most {grid.MOST_RUNS} runs with their values, found {number}")
    combinations = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
    questions = [Question(run, given) for run in runs for given in combinations]
    return questions, user_path(own.get("output-dir", "runs"), "output-dir"), jobs


def _runs(named: str) -> list[Path]:
    path = user_path(named, "rescore")
    folders = [folder for folder in held(path) if folder.is_dir()] if path.is_dir() else []
    if not folders:
        raise ConfigError(f"{path} is not a run folder and contains none")
    taken = [folder for folder in folders if folder == path or scoring.is_trained(folder)]
    unfinished = [folder.name for folder in folders if not (folder / RESULTS_FILE).is_file() and folder not in taken]
    if unfinished:
        typer.echo(f"left out, not finished: {', '.join(unfinished)}", err=True)
    return taken


def rescore(arguments: Sequence[str]) -> None:
    """Score finished runs again and print the new folders; scorings done before are listed, not repeated.

    Raises:
        FedShiftError: If the keys or the runs are wrong, before anything is scored; if a run cannot be scored, after
            those before it.
    """
    questions, output_dir, jobs = read(arguments)
    naming.check_place(output_dir)
    checked = [scoring.check(question) for question in questions]
    os.environ[COMMIT] = own_commit()
    before = [path for path in held(output_dir) if path.is_dir()] if output_dir.is_dir() else []
    left: list[tuple[str, Checked]] = []
    for question, candidate in zip(questions, checked, strict=True):
        if (folder := scoring.done(candidate, before)) is not None:
            typer.echo(f"{question.label}: done before: {shown(folder, WHOLE_PATH)}")
        else:
            left.append((question.label, candidate))
    score = partial(scoring.score, output_dir=output_dir, command=shlex.join(["fedshift", "rescore", *arguments]))
    new = _scored([candidate for _, candidate in left], score, min(jobs, len(left)))
    for (label, _), folder in zip(left, new, strict=True):
        typer.echo(f"{label}: {scoring.average(folder)}: {shown(folder, WHOLE_PATH)}")


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
