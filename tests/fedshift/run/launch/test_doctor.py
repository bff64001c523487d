"""``fedshift doctor``: the machine, what is kept of it, and each of its problems with what to do."""

import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from fedshift import cli
from fedshift.run.doctor import diagnostics, doctor
from fedshift.run.doctor.diagnostics import Problem
from fedshift_app.node import precision as node_precision
from fedshift_clients.training import autotune
from fedshift_clients.training.autotune import Found, Work
from fedshift_datasets.io import cache

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.delenv(node_precision.ASKED)


def measures(monkeypatch: pytest.MonkeyPatch, found: Found) -> None:
    monkeypatch.setattr(autotune, "measure", lambda *_: found)


def test_it_shows_and_renews_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"float32/channels_last": 2.5, "float32/nchw": 1.25}
    measures(monkeypatch, Found("float32/nchw", times, 16))
    monkeypatch.setattr(diagnostics, "problems", list)
    node_precision.chosen(Work("cnn", 0, "none", 32, 36), CPU)
    (node_precision.folder() / "00.json").write_text("damaged")
    shown = CliRunner().invoke(cli.app, ["doctor"])
    text, _, rest = shown.output.partition("problems\n")
    assert (shown.exit_code, rest) == (0, "  none found\n")
    page = yaml.safe_load(text)
    damaged, kept = page["choices"]
    assert damaged == {"file": "00.json", "damaged": True} and page["torch"]["version"] == torch.__version__
    assert (kept["choice"], kept["work"]["network"], kept["work"]["batch"]) == ("float32/nchw", "cnn", 36)
    assert kept["milliseconds"] == times and page["machine"]["memory"].endswith(" GB")

    measures(monkeypatch, Found("float32/channels_last", {"float32/channels_last": 1.0}, 16))
    content = json.loads(CliRunner().invoke(cli.app, ["doctor", "--json", "--renew"]).output)
    (renewed,) = content["renewed"]
    assert (renewed["was"], renewed["is"], content["problems"]) == ("float32/nchw", "float32/channels_last", [])
    assert [choice.get("choice") for choice in content["choices"]] == [None, "float32/channels_last"]


def test_a_problem_is_reported_with_what_to_do_and_makes_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "problems", lambda: [Problem("it is broken", "mend it")])
    monkeypatch.setenv(node_precision.ASKED, "hardware")
    shown = CliRunner().invoke(cli.app, ["doctor"])
    assert shown.exit_code == 1
    assert shown.output.endswith("problems\n  it is broken\n    mend it\n")
    assert "\nasked: hardware\n" in shown.output


def message_of(found: Iterator[Problem]) -> str:
    return "\n".join(f"{one.what}: {one.remedy}" for one in found)


def test_a_full_or_foreign_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimpleNamespace(free=10**12, total=10**12)
    monkeypatch.setattr(diagnostics.shutil, "disk_usage", lambda _: disk)
    assert message_of(diagnostics.folders()) == ""
    disk.free = 300_000_000
    assert f"300 MB are free in {tmp_path} (FEDSHIFT_CACHE): set FEDSHIFT_CACHE" in message_of(diagnostics.folders())
    monkeypatch.setattr(diagnostics.os, "access", lambda path, how: path != tmp_path)
    assert f"{tmp_path} cannot be written to (FEDSHIFT_CACHE)" in message_of(diagnostics.folders())


def test_limits_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = SimpleNamespace(total=64 << 20)
    monkeypatch.setattr(diagnostics, "SHARED", tmp_path)
    monkeypatch.setattr(diagnostics.shutil, "disk_usage", lambda _: small)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(diagnostics, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(diagnostics.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(diagnostics.os, "sched_getaffinity", lambda _: set(range(64)))
    assert "64 cores" not in message_of(diagnostics.limits())  # no quota
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    result = message_of(diagnostics.limits())
    assert "a process may open 256 files: ulimit -n 4096 (at most unlimited)" in result
    assert f"{tmp_path} has 67 MB, simulations are slow: docker run --shm-size=2g" in result
    assert "the system shows 64 cores and grants 2.5 to this process: actors=2" in result
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert diagnostics.cores_granted() == 64


def test_memory_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory: Any = SimpleNamespace(available=3_000_000_000)
    monkeypatch.setattr(diagnostics.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(diagnostics.os, "cpu_count", lambda: 8)
    assert message_of(diagnostics.memory()).endswith("about 1.1 GB for each of 8 cores: actors=2")
    memory.available = 20_000_000_000
    assert message_of(diagnostics.memory()) == ""
    (tmp_path / "version").write_text("NVRM")
    monkeypatch.setattr(diagnostics, "NVIDIA", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "there is an NVIDIA driver, but torch" in message_of(diagnostics.devices())


def test_ports_that_cannot_be_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert message_of(diagnostics.ports()) == ""
    with socket.socket() as other:
        other.bind((diagnostics.LOOPBACK, 0))
        other.listen(1)
        port = other.getsockname()[1]
        assert "in use" in diagnostics.refused(port, diagnostics.LOOPBACK)
        monkeypatch.setattr(diagnostics, "SUPERLINK", port)
        assert doctor.facts()["ports"] == {"loopback": True, "superlink": port, "superlink_free": False}
    assert diagnostics.refused(port, diagnostics.LOOPBACK) == ""
    assert all(problem.what and problem.remedy for problem in diagnostics.problems())
    monkeypatch.setattr(diagnostics, "LOOPBACK", "192.0.2.1")  # of no machine
    assert message_of(diagnostics.ports()).startswith("no port of 192.0.2.1 can be listened on: ")
