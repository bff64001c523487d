"""What several tests need: short runs in this process, and the real images where they are.

What needs torch is imported in fixtures: the process that gives the tests to workers reads this file too, and starts
them when it has done so.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from support import Command, InlineRun, Run, SmallDisk

settings.register_profile("fedshift", deadline=None, max_examples=50)
settings.load_profile("fedshift")

for stop in (signal.SIGINT, signal.SIGHUP):  # a job in the background ignores them, and tests send them to its children
    if signal.getsignal(stop) is signal.SIG_IGN:
        signal.signal(stop, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Find the tests without Python's garbage collector, which takes 2 of 14 s to look at them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # what is there stays until the end
        gc.set_threshold(20_000, 20, 20)  # the usual 700 costs 3 % of all tests
        gc.enable()


@pytest.fixture(autouse=True)
def _ledgers_of_images_go_with_a_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove what real nodes of this process have written next to images that several tests share."""
    ledger, folders = sys.modules.get("fedshift_app.node.ledger"), set[Path]()
    if ledger is None:
        yield
        return
    of_images = ledger.of_images

    def noted(folder: Path) -> Any:
        folders.add(folder)
        return of_images(folder)

    monkeypatch.setattr(ledger, "of_images", noted)
    yield
    for path in (path for folder in folders for path in folder.glob(".fedshift-node*")):
        path.unlink()


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """Return one worker more than cores where tests that wait for Flower's processes would leave a core idle."""
    cores = yield
    return cores + ("not slow" not in config.getoption("markexpr", ""))


@pytest.hookimpl(trylast=True)  # when marks have chosen the tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests that start Flower's processes first, in two lanes: half of their files for each of two workers.

    Each worker of pytest-xdist begins with its own part of the list and steals from the ends of others
    (``--dist worksteal``), so not more than two such tests run at a time.
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("slow"):
            files.setdefault(item.path, []).append(item)
    lanes: tuple[list[pytest.Item], ...] = ([], []) if workers > 1 else ([],)
    for tests in sorted(files.values(), key=len, reverse=True):
        min(lanes, key=len).extend(tests)
    rest = [item for item in items if item.path not in files or not item.get_closest_marker("slow")]
    first = max(0, len(items) // workers - len(lanes[0]))  # of the others, those of the first worker
    items[:] = lanes[0] + rest[:first] + [item for lane in lanes[1:] for item in lane] + rest[first:]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Forget the command of a test that calls ``cli.main``, which notes it in the environment for what it starts."""
    from fedshift_core.env import COMMAND

    before = os.environ.get(COMMAND)
    try:
        return (yield)
    finally:
        os.environ.pop(COMMAND, None)
        if before is not None:
            os.environ[COMMAND] = before


@pytest.fixture(autouse=True, scope="session")
def image_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep decoded images of tests apart from those of the person who runs them."""
    from fedshift_datasets.io import cache

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.CACHE_DIR, str(tmp_path_factory.mktemp("images")))
        yield


@pytest.fixture(autouse=True, scope="session")
def node_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what real nodes of tests remember and log apart from those of the person who runs them."""
    from fedshift_app.node import state_folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(state_folder.STATE_DIR, str(tmp_path_factory.mktemp("state") / "nodes"))
        yield


@pytest.fixture(autouse=True, scope="session")
def usual_settings() -> Iterator[None]:
    """Let inline runs of tests stay in their process, and measure nothing: what is fastest varies on a busy one.

    And let the log lines of ``fedshift`` go where a process's first run sends them, away from the root logger: while
    that test runs, pytest's ``caplog`` listens there, so it missed them unless another test had run before.
    """
    from fedshift.run.launch import worker_count
    from fedshift_app import server_app  # noqa: F401 (must know the real InlineGrid before a test puts its own there)
    from fedshift_app.node import precision
    from fedshift_app.run import console

    console.set_up()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(worker_count.WORKERS, "1")
        patch.setenv(precision.ASKED, "hardware")
        yield


@pytest.fixture(autouse=True, scope="session")
def own_ports() -> Iterator[None]:
    """Give each worker ports of its own, below those that the system gives away, for all that its tests start."""
    from fedshift.run.launch import processes

    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(processes.PORTS, f"{12_000 + 2500 * number}-{14_499 + 2500 * number}")
        yield


@pytest.fixture(autouse=True, scope="session")
def no_power_cut() -> Iterator[None]:
    """Let checkpoints of runs in this process be written without waiting for the disk, which costs 0.1 s a round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def quicker_parts() -> Iterator[None]:
    """Make once in a process what runs repeat, see ``quicker.py``."""
    from quicker import quicker

    with quicker():
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the test works in, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_inline(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InlineRun:
    """Return a function that runs the words of a command inline: ``run_inline("method=moon rounds=2 train.lr=1")``."""
    from finished_runs import flat_keys
    from support import Run
    from words import by_words

    from fedshift.run.engine import inline
    from fedshift.run.launch import runner

    def run(experiment: str = "handwritten", *, nodes: int = 4, grid: Any = None, **flat: Any) -> Run:
        if grid is not None:
            monkeypatch.setattr(inline, "InlineGrid", grid)
        few = request.node.get_closest_marker("long") is None  # which train until something is learnt
        given = {"output-dir": str(tmp_path / "runs")} | flat_keys(experiment, flat, few=few)
        return Run(runner.run_inline(given, nodes))

    return by_words(run)


@pytest.fixture
def finished_run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> InlineRun:
    """Return a function that gives a copy of a finished run: ``finished_run("nodes=4 rounds=1 train.lr=1")``.

    Tests that only look at a run take it from here: each configuration runs once, before the test changes anything.
    """
    from finished_runs import FinishedRuns
    from words import by_words

    return by_words(partial(FinishedRuns(tmp_path_factory).copy, tmp_path / "runs"))


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> InlineRun:
    """Return a function that gives a finished run itself, one for all workers, which no test may change."""
    from finished_runs import FinishedRuns
    from words import by_words

    return by_words(FinishedRuns(tmp_path_factory).shared)


@pytest.fixture
def fedshift(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Return a function that runs the command in this process, whose logging, signals and threads come back."""
    import torch
    from support import Ended

    from fedshift import cli

    def call(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["fedshift", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Ended(int(caught.value.code or 0), out, err)

    loggers = [logging.getLogger(name) for name in ("fedshift", "flwr")]
    before = [(logger.handlers[:], logger.filters[:], logger.level, logger.propagate) for logger in loggers]
    threads, handled = torch.get_num_threads(), {number: signal.getsignal(number) for number in cli.STOPPING}
    yield call
    for logger, (handlers, filters, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.filters[:], logger.propagate = handlers, filters, propagate
        logger.setLevel(level)
    torch.set_num_threads(threads)
    for number, handler in handled.items():
        signal.signal(number, handler)


@pytest.fixture
def kept_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read each committed run of docs/results once in this process, however many commands compare it."""
    from support import read_once

    from fedshift.lab.tables.results import loading

    monkeypatch.setattr(loading, "_read", read_once())


@pytest.fixture
def undrawn_figures() -> Iterator[None]:
    """Leave figures empty, where another test draws the same ones."""
    from support import undrawn

    with undrawn():
        yield


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount a tmpfs of 64 MB that a test may make smaller or read-only."""
    from support import SmallDisk

    path = tmp_path / "small-disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "fedshift-test", str(path)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here, which needs root: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
