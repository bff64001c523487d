"""What several tests need: short runs in this process, and the real images where they are."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from image_trees import REAL
from support import InlineRun, Run, SmallDisk

from datasets.io import cache
from fedshift.engine import inline
from fedshift.launch import runner, worker_count
from fedshift_app import server_app  # noqa: F401 (it must know the real InlineGrid before a test puts its own there)
from fedshift_app.node import precision as node_precision

settings.register_profile("fedshift", deadline=None)
settings.load_profile("fedshift")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that start Flower's processes first: pytest-xdist's first worker gets the first ones.

    Other workers steal from the end of what it has (``--dist worksteal``), so those tests run one after another.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True, scope="session")
def image_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep decoded images of tests apart from those of the person who runs them."""
    before = os.environ.get(cache.CACHE_DIR)
    os.environ[cache.CACHE_DIR] = str(tmp_path_factory.mktemp("images"))
    yield
    if before is None:
        del os.environ[cache.CACHE_DIR]
    else:
        os.environ[cache.CACHE_DIR] = before


@pytest.fixture(autouse=True, scope="session")
def usual_settings() -> Iterator[None]:
    """Let inline runs of tests stay in their process, and measure nothing: what is fastest varies on a busy one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(worker_count.WORKERS, "1")
        patch.setenv(node_precision.ASKED, "hardware")
        yield


@pytest.fixture(autouse=True, scope="session")
def no_power_cut() -> Iterator[None]:
    """Let checkpoints of runs in this process be written without waiting for the disk, which costs 0.1 s a round."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def run_inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InlineRun:
    """Return a function that runs an experiment inline: ``run_inline("handwritten", nodes=4, rounds=1, set="...")``."""

    def run(experiment: str = "handwritten", *, nodes: int = 4, grid: Any = None, **flat: Any) -> Run:
        if grid is not None:
            monkeypatch.setattr(inline, "InlineGrid", grid)
        given = {"experiment": experiment, "output-dir": str(tmp_path / "runs")}
        return Run(runner.run_inline(given | {key.replace("_", "-"): value for key, value in flat.items()}, nodes))

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount a tmpfs of 64 MB that a test may make smaller or read-only."""
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


@pytest.fixture(scope="session")
def real_digits() -> Path:
    """Return the folder of the real digits, which is not part of the project."""
    folder = REAL / "digits"
    if not folder.is_dir():
        pytest.skip(f"mnist, usps and mnistm as npz are not at {REAL}/digits (FEDSHIFT_TEST_DATA names another folder)")
    return folder
