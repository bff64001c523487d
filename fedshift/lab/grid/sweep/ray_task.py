"""One run of a sweep as a task of Ray: what a node of the cluster does, and what it tells."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from fedshift.lab.grid.sweep.children import STARTER, STOP_SECONDS
from fedshift.run.launch import processes
from fedshift_app.config.sections import RunConfig
from fedshift_app.run import exit_codes
from fedshift_app.run.versions import versions
from fedshift_core.errors import FedShiftError

WAIT_SECONDS = 0.5
AGAIN_SECONDS = 10.0  # until a run that another process holds is asked for again
FAILED = re.compile(r"failed: \S+: (?P<error>.*) \(log: .*\)")  # as Sweep.run prints it


@dataclass(frozen=True)
class Order:
    """What a node is to do.

    Attributes:
        arguments: Those of ``fedshift sweep`` that name the one run, without ``--in``.
        folder: The sweep's folder.
        here: The folder in which the user gave the command; relative paths begin there.
        lock: The name of a file in the sweep's folder.
        held: What is in that file: a node that reads something else sees another folder.
        config: The run's configuration.
        versions: What the user's machine has of all that decides numbers.
    """

    arguments: tuple[str, ...]
    folder: str
    here: str
    lock: str
    held: str
    config: RunConfig
    versions: dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """How a run ended on a node.

    Attributes:
        code: The exit code of ``fedshift sweep --in``.
        error: Why it failed; empty if it did not.
        host: The node's name.
    """

    code: int
    error: str
    host: str


def do(order: Order) -> Outcome:
    """Do one run, or continue it, in the sweep's folder; wait while another process has it.

    If this process is killed, a watchdog ends the run. Ray interrupts it by KeyboardInterrupt.
    """
    host = socket.gethostname()
    if wrong := refusal(order):
        return Outcome(exit_codes.REFUSED, f"node {host}: {wrong}", host)
    if threading.current_thread() is threading.main_thread():
        # A script's `ray start &` lets SIGINT be ignored in all that it starts, and with it Ray's interrupt.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    me = processes.this_process()
    watchdog = processes.Watchdog(STARTER, me)
    try:
        code, output = _once(order, me)
        while code == exit_codes.IN_USE:  # it may be on a node that is cut off, and still at work
            time.sleep(AGAIN_SECONDS)
            code, output = _once(order, me)
    finally:
        watchdog.release()
    return Outcome(code, "" if code in (exit_codes.OK, exit_codes.DEGRADED) else reason(output, code), host)


def refusal(order: Order) -> str:
    """Return why this node cannot do a run of that sweep; empty if it can."""
    try:
        held = (Path(order.folder) / order.lock).read_text(encoding="utf-8")
    except OSError:
        held = ""
    if held != order.held:
        return f"it does not see {order.folder}; output-dir must be a folder that all nodes share under the same path"
    if not Path(order.here).is_dir():
        return f"it has no folder {order.here}, from which the sweep was started"
    try:
        mine = versions(order.config)
    except FedShiftError as error:
        return str(error)
    different = [key for key in sorted(mine | order.versions) if mine.get(key) != order.versions.get(key)]
    if not different:
        return ""
    return "other versions than where the sweep was started: " + ", ".join(
        f"{key} {mine.get(key, 'none')} instead of {order.versions.get(key, 'none')}" for key in different
    )


def reason(output: str, code: int) -> str:
    """Return why ``fedshift sweep --in`` failed, from what it printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [found["error"] for line in lines if (found := FAILED.fullmatch(line))]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (named or errors or lines or [f"ended with code {code} without a message"])[-1]


def _once(order: Order, me: str) -> tuple[int, str]:
    """Call ``fedshift sweep --in`` once; return its exit code and what it printed."""
    env = os.environ | {STARTER: me}
    process = subprocess.Popen(
        [*sweep_command(), *order.arguments, "--in", order.folder], cwd=order.here, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,  # a signal to Ray's worker is passed on below, once
    )  # fmt: skip
    try:
        while True:  # Ray's interrupt is seen between two waits, not within one
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=WAIT_SECONDS)
                break
    except BaseException:
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS)
        finally:
            process.kill()
        raise
    return process.returncode, output


def sweep_command() -> list[str]:
    """Return what starts a sweep; its arguments follow. The working folder's modules must not come first."""
    return [sys.executable, "-P", "-m", "fedshift", "sweep"]
