"""Finds problems of this machine that would prevent, end or slow down a run."""

import os
import re
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from itertools import starmap
from pathlib import Path

import psutil
import torch
from packaging.requirements import Requirement

from fedshift.run.launch import orphans, worker_count
from fedshift_app.node import state_folder
from fedshift_app.run.versions import installed
from fedshift_core.disk_use import existing
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_datasets.io import cache

DISTRIBUTION = "fedshift"
LEAST_FREE = 1 << 30  # bytes in a folder that fills: PACS at 128 pixels takes half a gigabyte
LEAST_FILES = 1024  # open files of a process: Ray's take hundreds
LEAST_SHARED = 512 << 20  # bytes of /dev/shm, where Ray puts messages; a container has 64 MB by default
OF_AN_ACTOR = 1_100_000_000  # bytes of a process that plays nodes (docs/results/performance.md)
LOOPBACK = "127.0.0.1"
SUPERLINK = 8000  # the port of `fedshift superlink`, unless it is given another
RUNS = "runs"  # where run folders are made, unless output-dir says another
SHARED = Path("/dev/shm")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
NVIDIA = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Problem:
    """A problem of this machine or of the app's folder.

    Attributes:
        what: A description in one line.
        remedy: What to do, in one line.
    """

    what: str
    remedy: str


def problems() -> list[Problem]:
    """Return all problems of this machine."""
    return [*packages(), *folders(), *limits(), *memory(), *devices(), *ports(), *starmap(Problem, orphans.leftovers())]


def _requirements() -> list[Requirement] | None:
    """Return what FedShift requires, extras included; None if it is not installed."""
    try:
        return [Requirement(line) for line in requires(DISTRIBUTION) or ()]
    except PackageNotFoundError:
        return None


def packages() -> Iterator[Problem]:
    """Yield required packages that are missing or of another version."""
    wanted = _requirements()
    if wanted is None:
        yield Problem("FedShift is a folder on the path, but not installed", "pip install -e . in the folder")
    for requirement in wanted or ():
        name, number = requirement.name, installed(requirement.name)
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if needed and (number is None or not requirement.specifier.contains(number, prereleases=True)):
            right = f"{name}{requirement.specifier}"
            yield Problem(f"{name} {number or 'is missing'}, expected is {right}", f"pip install '{right}'")


def extras() -> dict[str, dict[str, str | None]]:
    """Return the packages of each extra, with the installed version or None; none if FedShift is not installed."""
    of: dict[str, dict[str, str | None]] = {}
    for requirement in _requirements() or ():
        if found := re.search(r"extra == [\"'](.+?)[\"']", str(requirement.marker)):
            of.setdefault(found[1], {})[requirement.name] = installed(requirement.name)
    return of


def folders() -> Iterator[Problem]:
    """Yield folders that cannot be written to, or are nearly full."""
    needed = {
        cache.CACHE_DIR: cache.cache_dir(),
        state_folder.STATE_DIR: state_folder.state_dir(),
        "TMPDIR": Path(tempfile.gettempdir()),
        "output-dir": Path(RUNS),
    }
    for variable, named in needed.items():
        folder = existing(named.absolute())
        remedy = f"set {variable} to your own folder with room"
        if not os.access(folder, os.W_OK | os.X_OK):
            yield Problem(f"{shown(folder)} cannot be written to ({variable})", remedy)
            continue
        free = shutil.disk_usage(folder).free
        if free < LEAST_FREE:
            yield Problem(f"{free / 1e6:.0f} MB are free in {shown(folder)} ({variable})", remedy)


def limits() -> Iterator[Problem]:
    """Yield limits on processes that are too low for Ray and Flower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        most = "unlimited" if hard == resource.RLIM_INFINITY else hard
        yield Problem(f"a process may open {plural(soft, 'file')}", f"ulimit -n 4096 (at most {most})")
    if SHARED.is_dir() and (size := shutil.disk_usage(SHARED).total) < LEAST_SHARED:
        remedy = "docker run --shm-size=2g, or engine=inline"
        yield Problem(f"{SHARED} has {size / 1e6:.0f} MB, simulations are slow", remedy)
    cores, granted = os.cpu_count() or 1, cores_granted()
    if granted < cores:
        what = f"the system shows {plural(cores, 'core')} and grants {granted:g} to this process"
        yield Problem(what, f"actors={max(1, int(granted))}, or a larger share of the processor")


def cores_granted() -> float:
    """Return the number of cores that this process may use, by affinity and quota."""
    cores = float(worker_count.cores())
    try:
        quota, _, period = QUOTA.read_text(encoding="ascii").partition(" ")
        return cores if quota == "max" else min(cores, int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return cores


def memory() -> Iterator[Problem]:
    """Yield a problem if memory is too small for a simulation with a process per core."""
    free, cores = psutil.virtual_memory().available, os.cpu_count() or 1
    if free < cores * OF_AN_ACTOR:
        yield Problem(
            f"{free / 1e9:.1f} GB of memory are free; a simulation takes about {OF_AN_ACTOR / 1e9:g} GB for each of "
            f"{plural(cores, 'core')}",
            f"actors={max(1, free // OF_AN_ACTOR)}",
        )


def devices() -> Iterator[Problem]:
    """Yield devices that torch does not use."""
    if NVIDIA.exists() and not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built for the CPU alone"
        yield Problem(
            f"there is an NVIDIA driver, but torch {torch.__version__} finds no GPU: it {built}",
            "see https://pytorch.org/get-started/locally for the build that fits the driver",
        )
    if not has_onednn():
        yield Problem(
            "this torch has no oneDNN: convolutions on the CPU are many times slower", "install torch from PyPI"
        )


def ports() -> Iterator[Problem]:
    """Yield problems that prevent a simulation's SuperLink from listening on the loopback."""
    if why := refused(0, LOOPBACK):
        yield Problem(f"no port of {LOOPBACK} can be listened on: {why}", "engine=inline, which needs no port")


def refused(port: int, host: str = "") -> str:
    """Return the reason why a port cannot be listened on; empty if it can; port 0 is any.

    Args:
        port: Its number.
        host: The address; empty for all of this machine.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return ""


def has_onednn() -> bool:
    """Tell whether torch was built with oneDNN."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
