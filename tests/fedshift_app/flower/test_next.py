"""Flower as it will be, and all of it that is supported: FedShift runs plain, or refuses where a door would be open."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT, refusal_of

from fedshift.run.doctor import hub
from fedshift.site.deploy import node_waits
from fedshift_app import server_app
from fedshift_app.flower import internals, quick_grid, simulating, sources
from fedshift_app.node import setup
from fedshift_core.errors import FedShiftError
from fedshift_strategies import plain

PULL = sources.found(f"{quick_grid.PARTS}:pull_objects")
OLDEST = re.findall(r'"flwr\[simulation\]>=([\d.]+)', (ROOT / "pyproject.toml").read_text())[0]
LANE = (
    "fedshift_app/flower", "fedshift_app/test_engines.py", "fedshift_core/test_records.py", "strategies/test_plain.py",
    "fedshift/site/deploy", "fedshift/run/launch/test_superlink.py", "security/test_bundle_with_other_code.py",
)  # fmt: skip


def the_server_goes_on() -> None:
    """A deployment's grid sends and brings messages as Flower's own does."""
    grid = SimpleNamespace(push_messages=list, pull_messages=list, get_nodes=list, send_and_receive=None)
    server_app._mend(grid, setup.DEPLOYMENT)
    assert grid.pull_messages([]) == grid.push_messages([]) == []


def a_reply_is_refused() -> None:
    assert isinstance(plain._inconsistent("of node 1"), ValueError)


def a_node_keeps_its_place() -> None:
    node_waits.keep_place(SimpleNamespace(FleetHttpClient=object))  # type: ignore[arg-type]


def hub_tells_nothing() -> str:
    (problem,) = hub.problems(ROOT)
    return problem.what


def refuses(action: Callable[..., Any], *given: Any, **named: Any) -> Callable[[], str]:
    return lambda: refusal_of(FedShiftError, action, *given, **named)


#: By the start of a name, what still works without it, or says that it does not.
WITHOUT: dict[str, Callable[[], str | None]] = {
    "flwr.app.message:make_message": the_server_goes_on,
    f"{sources.GRID}:": the_server_goes_on,
    f"{quick_grid.PARTS}:": the_server_goes_on,
    "flwr.supercore.task_identity:": internals.identify_process,
    "flwr.supercore.heartbeat:": a_node_keeps_its_place,
    "flwr.serverapp.exception:": a_reply_is_refused,
    "flwr.cli.": hub_tells_nothing,
    "flwr.superlink.": refuses(internals.guard_superlink, object),
    f"{simulating.BACKEND}:": refuses(simulating.prepare),
    "flwr.super": refuses(node_waits.run_supernode, [], warm=True),
}
SILENT = ("flwr.supercore.task_identity:", "flwr.supercore.heartbeat:", "flwr.serverapp.exception:")


@pytest.mark.parametrize("name", sources.NAMES)
def test_without_a_name_it_runs_plain_or_refuses(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    grid: Any = importlib.import_module(sources.GRID)
    importlib.import_module(sources.ENGINE)
    monkeypatch.setattr(grid, "inflate_object_from_contents", grid.inflate_object_from_contents)
    monkeypatch.setitem(PULL.__kwdefaults__, "initial_backoff", 1.0)
    module, _, attribute = name.partition(":")
    monkeypatch.delattr(importlib.import_module(module), attribute)
    said = next(action for start, action in WITHOUT.items() if name.startswith(start))()
    assert (f"{name} of Flower 1." in (said or caplog.text)) != name.startswith(SILENT)


def test_the_lane_is_there() -> None:
    assert [place for place in LANE if not (ROOT / "tests" / place).exists()] == []


@pytest.mark.long
@pytest.mark.parametrize("flower", [f"flwr=={OLDEST}.*", "flwr"])
def test_what_stands_on_flower_holds_with_the_oldest_and_the_newest(flower: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), flower]
    made = subprocess.run(pip, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"pip brings no {flower}: {made.stderr[-200:]}")
    lane = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not long"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*lane, *LANE], cwd=ROOT / "tests", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
