"""``fedshift sweep --list``: one command for each run, safe for many at once, and the array of one Slurm job."""

import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from played_runs import Compared, Played
from refusals import refused

from fedshift.lab.grid import commands
from fedshift.lab.grid.sweep import grid
from fedshift_app.run import exit_codes
from fedshift_core.atomic_io import Lock
from fedshift_core.errors import ConfigError, FederationError


def one(command: str) -> int:
    """Do what a printed command says, in this process; return its exit code."""
    program, word, *arguments, option, folder = shlex.split(command)
    assert (program, word, option) == ("fedshift", "sweep", "--in")
    try:
        commands.sweep(arguments, into=folder)
    except FederationError:
        return exit_codes.FAILED
    except SystemExit as stop:
        return int(str(stop.code))
    return exit_codes.OK


def printed(played: Played, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    commands.sweep(["handwritten", f"output-dir={played.home / 'runs'}", *arguments], listed=True)
    return capsys.readouterr().out.splitlines()


def test_eight_at_once_do_each_run_once_and_the_sweeps_own_command_compares(
    played: Played, compared: type[Compared], capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = "seed=0,1,2,3,4,5,6,7"
    commands = printed(played, capsys, seeds)
    (folder,) = {line.split()[-1] for line in commands}
    assert len(commands) == 8
    assert commands[3] == f"fedshift sweep handwritten seed=3 report=false engine=inline --in {folder}"
    played.prepare(seeds)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, commands)) == [0] * 8
    assert one(commands[5]) == 0  # a run that is finished is left alone
    assert not (played.folder / "sweep.json").exists()
    played.sweep(seeds)
    assert sorted(played.started) == [f"{seed} new" for seed in range(8)] and len(compared.calls[0][0]) == 8


def test_a_run_that_was_killed_is_gone_on_with_and_the_exit_code_says_how_it_ended(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = printed(played, capsys, "seed=0,1", "retries=0")
    assert all(" retries=0 --in " in command for command in commands)
    played.prepare("seed=0,1")
    played.fate(0, "die")
    played.fate(1, "lose")
    assert [one(command) for command in (commands[0], commands[0], commands[1])] == [1, 0, exit_codes.DEGRADED]
    assert played.started == ["0 new", "0 resumed", "1 new"]


def test_a_run_or_a_sweep_that_is_going_on_elsewhere_is_left_to_it(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = printed(played, capsys, "seed=0,1")

    played.prepare("seed=0,1")
    (point,), _ = grid.points(grid.read(["handwritten", "seed=0"]))
    folder = Path(first.split()[-1])
    folder.mkdir(parents=True)
    for name, said in ((f"lock-{point.key}", "fedavg is in progress in process"), ("lock", str(os.getpid()))):
        held = Lock(folder / name)
        assert one(first) == exit_codes.IN_USE == 75 and said in capsys.readouterr().err
        assert name == "lock" or one(second) == 0
        held.release()
    alone = Lock(folder / "lock", shared=True)
    with pytest.raises(ConfigError, match="is already in progress"):
        played.sweep("seed=0,1")
    alone.release()


def test_the_slurm_script_does_the_run_of_its_task(played: Played, tmp_path: Path) -> None:
    file, tools = tmp_path / "it's.sbatch", tmp_path / "bin"
    requests = ["handwritten", f"output-dir={tmp_path / 'runs'}", "seed=0,1", "allocation.held_out=[street, sketch]"]
    commands.sweep(requests, listed=True, slurm=file)
    with refused(ConfigError, f"--slurm: cannot write {tmp_path}"):
        commands.sweep(requests, listed=True, slurm=tmp_path)
    with refused(ConfigError, "--in needs one run", "2 runs"):
        commands.sweep(["handwritten", "seed=0,1"], into=str(tmp_path))
    with refused(ConfigError, "--list", "--slurm"):
        commands.sweep(requests, slurm=file)
    tools.mkdir()
    (tools / "fedshift").write_text('#!/bin/bash\nprintf "%s|" "$@"; exit 4\n')
    (tools / "fedshift").chmod(0o755)
    tasks = []
    for number in "12":
        env = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": number}
        tasks.append(subprocess.run(["bash", file], env=env, capture_output=True, text=True, check=False, cwd="/"))
    assert [task.returncode for task in tasks] == [4, 2]  # the first is the run's own
    output = tasks[0].stdout.split("|")
    assert output[:4] == ["sweep", "handwritten", "seed=1", "allocation.held_out=[street, sketch]"]
    assert output[-3] == "--in" and Path(output[-2]).is_dir()
    text = file.read_text()
    assert "#SBATCH --array=0-1\n" in text and f'#SBATCH --output="{played.home / "runs"}' in text
