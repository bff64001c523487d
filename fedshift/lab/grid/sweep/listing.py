"""A sweep on several machines: ``fedshift sweep ... --list`` prints one command per run.

Each command does or resumes one run of the grid in the sweep's folder, and leaves a finished run alone.
So a queue may start all commands at once, any of them twice, and again after it has killed one. When all are done, the
sweep's own command finds them finished, and compares.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from fedshift.lab.grid.sweep import grid
from fedshift.lab.grid.sweep.grid import GridRequest, Point
from fedshift.lab.grid.sweep.running import SweepInUseError, lock
from fedshift.lab.grid.sweep.sweeping import Sweep, planned
from fedshift_app.run import exit_codes, status
from fedshift_app.run.files import LOCK_FILE
from fedshift_core.atomic_io import InUse, Lock, write_atomically
from fedshift_core.env import COMMAND
from fedshift_core.errors import ConfigError
from fedshift_core.paths import user_path
from fedshift_core.plural import plural


def show(arguments: Sequence[str], slurm: Path | None) -> None:
    """Print one command for each run of a grid, or write them as the array of one Slurm job.

    Raises:
        FedShiftError: If the grid is wrong.
    """
    request, points, notes, folder = planned(arguments)
    for note in notes:
        typer.echo(note, err=True)
    commands = [
        shlex.join(["fedshift", "sweep", *run_arguments(point, request), "--in", str(folder)]) for point in points
    ]
    if slurm is None:
        for line in commands:
            typer.echo(line)
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)  # Slurm's logs go there
        write_atomically(slurm, script(commands, folder, ["fedshift", "sweep", *arguments]))
    except OSError as error:
        raise ConfigError(f"--slurm: cannot write {slurm}: {error.strerror}") from None
    typer.echo(f"wrote {slurm}: {plural(len(commands), 'task')}; submit it with: sbatch {shlex.quote(str(slurm))}")


def run_arguments(point: Point, request: GridRequest) -> list[str]:
    """Return the arguments of ``fedshift sweep`` that name one run of a grid."""
    retries = request.options.retries
    return [*point.arguments, *[f"retries={retries}"] * (retries != 1)]


def script(commands: Sequence[str], folder: Path, then: Sequence[str]) -> str:
    """Return a batch script with a task for each command, that runs in the current folder."""
    output = f"{folder}/slurm-".replace("%", "%%")  # Slurm fills in what follows a %
    tasks = "\n".join(f"{number}) exec {line} ;;" for number, line in enumerate(commands))
    return f"""#!/bin/bash
#SBATCH --job-name=fedshift
#SBATCH --array=0-{len(commands) - 1}
#SBATCH --output="{output}%A_%a.out"
#SBATCH --requeue
# Each task is one run; one that is given again goes on with it. When all are done, this compares them:
#   {shlex.join(then)}
cd {shlex.quote(str(Path.cwd()))} || exit 1
case "$SLURM_ARRAY_TASK_ID" in
{tasks}
*) echo "SLURM_ARRAY_TASK_ID: expected 0 to {len(commands) - 1}, found '$SLURM_ARRAY_TASK_ID'" >&2; exit 2 ;;
esac
"""


def run_point(arguments: Sequence[str], into: str) -> None:
    """Do one run of a sweep in its folder, unless it is finished.

    Raises:
        FedShiftError: If it is not one run, is wrong, or failed.
        SystemExit: With 4 if the run is degraded, with 75 if it, or the whole sweep, is going on elsewhere.
    """
    request = grid.read(arguments)
    points, _ = grid.points(request)  # the run checks its images itself
    if len(points) != 1 or "output-dir" in request.values:
        runs = plural(len(points), "run")
        raise ConfigError(f"--in needs one run and no output-dir, as `--list` prints it; found {runs}")
    folder, (point,) = user_path(into, "--in"), points
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(lock(folder, shared=True))
            held.callback(Lock(folder / f"{LOCK_FILE}-{point.key}").release)
        except (SweepInUseError, InUse) as error:
            message = f"{point.label} is in progress in {error}" if isinstance(error, InUse) else error
            typer.echo(f"error: {message}", err=True)
            raise SystemExit(exit_codes.IN_USE) from None
        os.environ.setdefault(COMMAND, shlex.join(["fedshift", *sys.argv[1:]]))
        single = Single(folder, request, points, mark=f"{folder}:{point.key}")
        single.run("")
    done = single.records[0].folder
    assert done is not None  # else it failed
    status.exit_if_degraded(done)


class Single(Sweep):
    """One run of a sweep whose other runs other commands do; only the run's folder counts."""

    def save(self) -> None:
        """Write nothing."""

    def compare(self, paper: str) -> None:
        """Compare nothing."""
