"""The command: checks all models first, scores one after the other, prints them side by side."""

import contextlib
import itertools
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from fedshift.lab.grid.evaluate import composing, models, table
from fedshift.lab.grid.evaluate.composing import Composed, Request
from fedshift.lab.grid.evaluate.table import Scored
from fedshift.lab.tables.results.places import held
from fedshift.run.checking import check_data, check_model
from fedshift.run.launch import local_superlink, log_filter, progress_line, runner, running, site_status, worker_count
from fedshift_app.run import build as run_build
from fedshift_app.run import console, exit_codes, naming, status
from fedshift_app.run.versions import own_commit
from fedshift_core import atomic_io, said_once
from fedshift_core.env import COMMIT, TELEMETRY
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.paths import typed_path, user_path
from fedshift_core.wire.names import DEPLOYMENT

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
    ended = {each["model"]: status.read(Path(each["run_folder"])) for each in scored}
    degraded = {name: last.error for name, last in ended.items() if last.state == status.DEGRADED}
    for name, error in degraded.items():
        typer.echo(f"degraded: {shown(name)}: {error}", err=True)
    return exit_codes.DEGRADED if degraded else exit_codes.OK


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
    worker_count.check(request.launch)
    if site:
        for key in request.launch.keys() - {"report"}:
            raise ConfigError(f"{key}: --site asks the real nodes of a SuperLink; the key is for simulations")
        site_status.read(site)
    os.environ[COMMIT] = own_commit()
    console.set_up(aside=aside)
    with said_once.shared(), _folder(user_path(request.flat["output-dir"], "output-dir")) as folder:
        composed = [
            composing.compose(models.read(path, label, folder / MODELS / name), request, folder / f"{name}.yaml")
            for path, label in zip(paths, models.labels(paths), strict=True)
            for name in [label.replace("/", "-")]
        ]
        nodes = [_checked(each, request, site) for each in composed]
        with contextlib.redirect_stdout(sys.stderr) if aside else contextlib.nullcontext():
            return folder, _scored(composed, nodes, request, folder, site)


def _is_model(word: str) -> bool:
    return "=" not in word or Path(word).is_dir()


def _checked(composed: Composed, request: Request, site: str) -> int:
    """Check that a model can be scored so, and return the number of simulated nodes; 0 with ``site``.

    Raises:
        FedShiftError: If weights, images or nodes do not go together.
    """
    if site:
        run_build.prepare(composed.config, DEPLOYMENT)
        return 0
    nodes = runner.num_nodes(composed.config, request.launch.get("nodes") or composed.usual_nodes)
    check_data(composed.config, nodes)
    check_model(composed.config)
    return nodes


def _scored(
    composed: Sequence[Composed], nodes: Sequence[int], request: Request, folder: Path, site: str
) -> list[Scored]:
    scored: list[Scored] = []
    for each, number in zip(composed, nodes, strict=True):
        flat = {"experiment": str(each.file), "output-dir": str(folder)}
        run_folder = _on_site(site, flat) if site else running.run(flat, {**request.launch, "nodes": number})
        scored.append(table.read(each.model, run_folder))
        if request.launch.get("report", False):
            from fedshift.lab.pages.report import command as report

            report.run(run_folder, [])
        atomic_io.write_atomically(folder / JSON_FILE, table.as_json(scored) + "\n")
        atomic_io.write_atomically(folder / CSV_FILE, table.as_csv(scored))
    return scored


def _on_site(site: str, flat: dict[str, str]) -> Path:
    """Submit a run to a SuperLink that ``flwr`` knows by name; its ServerApp writes its folder on this machine.

    Raises:
        FederationError: If it did not start, or failed.
    """
    output = Path(flat["output-dir"])
    before = set(held(output))
    with local_superlink.temporary_folder() as home, progress_line.usual() as screen:
        env = {TELEMETRY: "0", "FLWR_DISABLE_UPDATE_CHECK": "1", **os.environ}
        command = local_superlink.run_command(home, site, flat)
        log_filter.call(command, local_superlink.empty_folder(home), env, screen.out)
    if not (folders := [folder for folder in held(output) if folder not in before]):
        raise FederationError(
            f"--site {site}: the run left no folder in {shown(output)}: it did not start, or the SuperLink is on "
            "another machine, where this command belongs"
        )
    ended = status.read(folders[0])
    if ended.state not in (status.COMPLETED, status.DEGRADED):
        raise FederationError(f"--site {site}: {ended.error or ended.state}", remedy=f"see {folders[0]}")
    return folders[0]


@contextmanager
def _folder(output: Path) -> Iterator[Path]:
    """Make the folder of an evaluation; it goes again if nothing was scored."""
    naming.check_place(output)
    name = f"evaluate-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count():  # of others in the same second
        folder = output / (f"{name}-{number}" if number else name)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    try:
        yield folder
    finally:
        if not held(folder):
            shutil.rmtree(folder, ignore_errors=True)
