"""The SuperLink of one simulation: it rings for SuperExec, which starts a program that is forked."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from fedshift.run.launch import forked, processes, simulation_superlink


@pytest.mark.parametrize(("path", "rings"), [("/v1/control/start-run", b"."), ("/v1/control/stream-logs", b"")])
def test_it_rings_after_a_request_for_a_run(path: str, rings: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, bell = os.pipe()
    monkeypatch.setattr(simulation_superlink.RingingOwner, "bell", bell)
    monkeypatch.setattr(simulation_superlink.RingingOwner, "passes", lambda *_: True)
    seen: list[bytes] = []

    async def app(*_: Any) -> None:
        os.set_blocking(heard, False)
        with pytest.raises(BlockingIOError):
            os.read(heard, 9)  # it does not ring before the run is there
        seen.append(b"")

    guard = simulation_superlink.RingingOwner(app)
    asyncio.run(guard({"type": "http", "path": path}, None, None))  # type: ignore[arg-type]
    os.close(bell)
    assert seen == [b""]
    assert os.read(heard, 9) == rings
    os.close(heard)


def test_it_waits_until_somebody_listens() -> None:
    port = processes.free_port()
    waiting = threading.Thread(target=simulation_superlink.wait_for, args=(port, os.getppid()), daemon=True)
    waiting.start()
    with socket.create_server(("127.0.0.1", port)):
        waiting.join(60)
    assert not waiting.is_alive()
    simulation_superlink.wait_for(processes.free_port(), -1)  # the parent has gone


def test_the_program_passes_its_arguments_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.setattr(
        forked, "command", lambda program: [sys.executable, "-c", "import sys; print(sys.argv)", program]
    )
    program = simulation_superlink.simulation_program(folder)
    shown = subprocess.run([program, "--token", "a b"], capture_output=True, text=True, check=True).stdout
    assert shown == f"['-c', '{forked.SIMULATION}', '--token', 'a b']\n"
    assert (Path(program).stat().st_mode & 0o777) == 0o700
