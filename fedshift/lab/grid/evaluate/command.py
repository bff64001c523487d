"""The command: checks all models first, scores one after the other, prints them side by side."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from fedshift.lab.grid.evaluate import composing, models, running, table
from fedshift.lab.grid.evaluate.composing import Composed, Request
from fedshift.lab.grid.evaluate.table import Scored
from fedshift.lab.tables.results.places import held
from fedshift_app.run import console, exit_codes, status
from fedshift_app.run.versions import own_commit
from fedshift_core import atomic_io, said_once
from fedshift_core.env import COMMIT
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.paths import typed_path, user_path

MOST = 1000  # models
JSON_FILE, CSV_FILE, MODELS = "evaluate.json", "evaluate.csv", "models"


def evaluate(arguments: Sequence[str], site: str, *, as_json: bool) -> int:
    """Score models on all nodes and print them side by side.

    Args:
        arguments: ``MODEL ... [KEY=VALUE ...]``.
        site: The SuperLink whose nodes are asked, by its name in ``flwr``'s configuration; empty for a simulation.
        as_json: Print one JSON object in place of the table.

    Returns:
        The exit code.

    Raises:
        FedShiftError: If a model, a key or the images are wrong, before anything is scored; if a scoring fails.
    """
    folder, scored = evaluated(arguments, site, aside=as_json)
    typer.echo(table.as_json(scored) if as_json else table.table(scored))
    typer.echo(f"evaluation: {shown(folder, WHOLE_PATH)}", err=as_json)
    return _degraded(scored)


def evaluated(arguments: Sequence[str], site: str, *, aside: bool) -> tuple[Path, list[Scored]]:
    """Score models on all nodes; return the folder of the evaluation and the scores.

    Args:
        arguments: As of :func:`evaluate`.
        site: Likewise.
        aside: What goes on is printed to standard error.

    Raises:
        FedShiftError: As :func:`evaluate`.
    """
    paths = list(dict.fromkeys(typed_path(word).resolve() for word in arguments if _is_model(word)))
    if not 1 <= len(paths) <= MOST:
        raise ConfigError(f"evaluate: name 1 to {MOST} models: folders that `fedshift save` wrote, or run folders")
    request = composing.read([word for word in arguments if not _is_model(word)])
    running.check_launch(request.launch, site)
    os.environ[COMMIT] = own_commit()
    console.set_up(aside=aside)
    with said_once.shared(), _folder(user_path(request.flat["output-dir"], "output-dir")) as folder:
        composed = _composed(paths, request, folder)
        nodes = [running.check(each, request.launch, site) for each in composed]
        with contextlib.redirect_stdout(sys.stderr) if aside else contextlib.nullcontext():
            return folder, _scored(composed, nodes, request, folder, site)


def _is_model(word: str) -> bool:
    return "=" not in word or Path(word).is_dir()


def _composed(paths: Sequence[Path], request: Request, folder: Path) -> list[Composed]:
    composed = []
    for path, label in zip(paths, models.labels(paths), strict=True):
        name = label.replace("/", "-")
        model = models.read(path, label, folder / MODELS / name)
        composed.append(composing.compose(model, request, folder / f"{name}.yaml"))
    return composed


def _scored(
    composed: Sequence[Composed], nodes: Sequence[int], request: Request, folder: Path, site: str
) -> list[Scored]:
    scored: list[Scored] = []
    for each, number in zip(composed, nodes, strict=True):
        run_folder = running.run(each, number, request.launch, folder, site)
        scored.append(table.read(each.model, run_folder))
        if request.launch.get("report", False):
            from fedshift.lab.pages.report import command as report

            report.run(run_folder, [])
        atomic_io.write_atomically(folder / JSON_FILE, table.as_json(scored) + "\n")
        atomic_io.write_atomically(folder / CSV_FILE, table.as_csv(scored))
    return scored


@contextmanager
def _folder(output: Path) -> Iterator[Path]:
    """Make the folder of an evaluation; it goes again if nothing was scored."""
    stem = f"evaluate-{time.strftime('%Y%m%d-%H%M%S')}"
    for name in (stem, *(f"{stem}-{number}" for number in range(1, 1000))):
        folder = output / name
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            if not output.is_dir():
                raise ConfigError(f"output-dir: {shown(output)} is not a folder") from None
        except OSError as error:
            raise ConfigError(f"output-dir: cannot write to {shown(output)}: {error.strerror}") from None
    else:
        raise ConfigError(f"output-dir: {shown(output)} holds too many evaluations of the same second")
    try:
        yield folder
    finally:
        if not held(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _degraded(scored: Sequence[Scored]) -> int:
    """Print which scorings lost a node, and return the exit code."""
    code = 0
    for each in scored:
        last = status.read(each.folder)
        if last.state == status.DEGRADED:
            typer.echo(f"degraded: {shown(each.model.label)}: {last.error}", err=True)
            code = exit_codes.DEGRADED
    return code
