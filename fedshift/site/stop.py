"""``fedshift site stop``: the owner switches a node off, and may delete what it keeps."""

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from fedshift.data import inventory
from fedshift.run.launch import processes
from fedshift.site import nodes
from fedshift.site.nodes import SiteNode
from fedshift_app.node import chained_log, state_folder
from fedshift_core import atomic_io, same_names
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.plural import plural
from fedshift_datasets import catalog
from fedshift_datasets.io import cache, kept

GRACE_SECONDS = 15.0  # in which a SuperNode signs off from its SuperLink
KILL_SECONDS = 5.0
POLL_SECONDS = 0.05
#: What stays in the node's folder.
LOGS = (chained_log.LOG_FILE, chained_log.HEAD_FILE, chained_log.LOCK_FILE, chained_log.OFF_FILE, nodes.STARTED_FILE)


@dataclass(frozen=True)
class Freed:
    """What was deleted.

    Attributes:
        files: Number of files.
        bytes: Their bytes.
        left: Lines about what stays that may tell of images, and why.
    """

    files: int
    bytes: int
    left: tuple[str, ...]


def stop(node: SiteNode) -> str:
    """Switch a node off, then end its SuperNode with all its processes; return a line about what was ended.

    From the first step on no reply is logged, so none leaves: the message that it works on is dropped. Then the
    SuperNode signs off from its SuperLink, and `fedshift supernode` does not start the node again.

    Raises:
        DiskError: If the switch cannot be written.
        FedShiftError: If a process of it cannot be ended.
    """
    chained_log.switch_off(node.folder)
    supernode = _supernode(node)
    if supernode is None:
        return (
            "no SuperNode that `fedshift supernode` started for it runs on this machine; of any other, nothing leaves "
            "but a line that refuses"
        )
    family = _family(supernode)
    with contextlib.suppress(psutil.NoSuchProcess):
        supernode.terminate()  # Flower's handler signs off
    _wait([supernode], GRACE_SECONDS)
    family = list({*family, *(child for process in family for child in _family(process))})
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if alive := _wait(family, KILL_SECONDS):
        raise FedShiftError(
            f"processes of {shown(node.name)} cannot be ended: {', '.join(str(process.pid) for process in alive)}; "
            "nothing leaves them but a line that refuses"
        )
    return f"its SuperNode (process {supernode.pid}) has ended, and what it worked on is dropped"


def _supernode(node: SiteNode) -> psutil.Process | None:
    """Return the process of a node's SuperNode; None if none runs, or it ends at this moment."""
    if node.runs:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(int(node.process.partition(" ")[0]))
    return None


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return [process]


def _wait(family: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until processes have ended; return those that have not."""
    deadline = time.monotonic() + seconds
    while alive := [process for process in family if not processes.has_ended(process)]:
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    return alive


def undo(node: SiteNode) -> bool:
    """Let a node be started again; return whether it was switched off.

    Raises:
        DiskError: If that cannot be written.
    """
    return chained_log.switch_on(node.folder)


def stays(node: SiteNode) -> list[str]:
    """Return what the node keeps on this machine, a line each."""
    log = node.folder / chained_log.LOG_FILE
    said = "the log of what left it" if log.is_file() else "no log is here"
    lines = [f"{said}: {shown(log, WHOLE_PATH)}"]
    if private := [path for path in _private(node) if path.exists()]:
        lines.append(
            f"what runs and reports left, {plural(_size(private), 'byte', form=',')}: "
            f"{', '.join(shown(path.name) for path in private)}"
        )
    cached = _cached(node)
    if cached:
        lines.append(
            f"decoded images, {plural(sum(entry.bytes for entry in cached), 'byte', form=',')}: `fedshift cache` "
            "lists them"
        )
    if features := [entry for entry in inventory.entries() if entry.kind == "features"]:
        total = sum(entry.bytes for entry in features)
        lines.append(
            f"features of images of this machine, {plural(total, 'byte', form=',')}: `fedshift cache` lists them"
        )
    lines.append(f"its images: {shown(node.config['data-dir'])}" if "data-dir" in node.config else "its images")
    return lines


def forget(node: SiteNode) -> Freed:
    """Delete what a node keeps of its runs, its received model, its reports and its decoded images.

    The log stays, and so do its images and its key. Features of images do not say of which node they are: they are
    deleted where this machine has no other node.

    Raises:
        ConfigError: If its SuperNode runs.
        OSError: If this user may not delete something.
    """
    if node.runs:
        raise ConfigError(f"--forget: the SuperNode of {shown(node.name)} runs; stop it first")
    private = [path for path in _private(node) if path.exists()]
    files, size = sum(map(_count, private)), _size(private)
    with atomic_io.writing(node.folder):
        for path in private:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    left: list[str] = []
    entries = _cached(node)
    if nodes.names() == [node.name]:
        entries += [entry for entry in inventory.entries() if entry.kind == "features"]
    elif any(entry.kind == "features" for entry in inventory.entries()):
        left.append("features of images: this machine has other nodes, and features do not say of which they are")
    for entry in entries:
        count, taken = _count(entry.path), entry.bytes
        if entry.delete():
            files, size = files + count, size + taken
        else:
            left.append(f"{shown(entry.name)}: a process is writing it")
    kept.remove_abandoned()  # of a process that was ended while it decoded
    files += cache.remove_lists()  # other nodes of this machine make theirs again
    return Freed(files, size, tuple(left))


def _private(node: SiteNode) -> list[Path]:
    """Return what a node keeps besides its log: private parts by run, the received model, reports."""
    return sorted(path for path in node.folder.iterdir() if path.name not in LOGS)


def _cached(node: SiteNode) -> list[inventory.Entry]:
    """Return the decoded images of the node's domain, or of a public set, whose files are in its folder of images."""
    if "data-dir" not in node.config:
        return []
    own = state_folder.named_domains(node.config.get("domain", ""))
    home = os.path.expanduser(str(node.config["data-dir"]))  # noqa: PTH111 (never fails)
    return [
        entry for entry in inventory.entries()
        if entry.kind == "images" and "origin" in entry.about
        and (same_names.place(entry.about["domain"], own) is not None or entry.about["domain"] == catalog.PUBLIC)
        and _is_below(str(entry.about["origin"]), home)
    ]  # fmt: skip


def _is_below(origin: str, home: str) -> bool:
    """Return whether a path is in a folder as it is written, or as it is without links: a site may be a link."""
    places = {Path(os.path.abspath(home)), Path(home).resolve()}  # noqa: PTH100 - without ..
    return any(
        path.is_relative_to(place)
        for path in (Path(os.path.abspath(origin)), Path(origin).resolve())  # noqa: PTH100
        for place in places
    )


def _count(path: Path) -> int:
    return sum(1 for inside in path.rglob("*") if inside.is_file()) if path.is_dir() else 1


def _size(paths: list[Path]) -> int:
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    return sum(file.lstat().st_size for file in files if file.is_file())
