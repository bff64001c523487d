"""``fedshift site stop``: the owner switches a node off, and may delete what it keeps."""

import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from fedshift.data import cache_command
from fedshift.run.launch import processes
from fedshift.site import nodes
from fedshift.site.nodes import SiteNode
from fedshift_app.node import chained_log, state_folder
from fedshift_core import atomic_io, same_names
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_datasets import catalog
from fedshift_datasets.io import cache, kept

GRACE_SECONDS = 15.0  # in which a SuperNode signs off from its SuperLink
KILL_SECONDS = 5.0
POLL_SECONDS = 0.05
#: What stays in the node's folder.
LOGS = (chained_log.LOG_FILE, chained_log.HEAD_FILE, chained_log.LOCK_FILE, chained_log.OFF_FILE, nodes.STARTED_FILE)


def stop(node: SiteNode) -> str:
    """Switch a node off, then end its SuperNode with all its processes; return a line about what was ended.

    From the first step on no reply is logged, so none leaves: the message that it works on is dropped. Then the
    SuperNode signs off from its SuperLink, and `fedshift supernode` does not start the node again.

    Raises:
        DiskError: If the switch cannot be written.
        FedShiftError: If a process of it cannot be ended.
    """
    chained_log.switch_off(node.folder)
    try:
        supernode = psutil.Process(int(node.process.partition(" ")[0])) if node.runs else None
    except psutil.NoSuchProcess:  # it ends at this moment
        supernode = None
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


def stays(node: SiteNode) -> list[str]:
    """Return what the node keeps on this machine, a line each."""
    log, images = node.folder / chained_log.LOG_FILE, node.config.get("data-dir", "")
    lines = [f"{'the log of what left it' if log.is_file() else 'no log is here'}: {shown(log, WHOLE_PATH)}"]
    if private := _private(node):
        lines.append(f"what runs and reports left: {', '.join(shown(path.name) for path in private)}")
    for what, entries in (("decoded images", _cached(node)), ("features of images of this machine", _features())):
        if entries:
            lines.append(f"{what}: `fedshift cache` lists them")
    return [*lines, f"its images: {shown(images)}" if images else "its images"]


def forget(node: SiteNode) -> list[str]:
    """Delete what a node keeps of its runs, its received model, its reports and its decoded images.

    The log stays, and so do its images and its key. Features of images do not say of which node they are: they are
    deleted where this machine has no other node.

    Returns:
        Lines about what stays that may tell of images.

    Raises:
        ConfigError: If its SuperNode runs.
        OSError: If this user may not delete something.
    """
    if node.runs:
        raise ConfigError(f"--forget: the SuperNode of {shown(node.name)} runs; stop it first")
    entries, left = _cached(node), list[str]()
    with atomic_io.writing(node.folder):
        for path in _private(node):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if nodes.names() == [node.name]:
        entries += _features()
    elif _features():
        left.append("features of images: this machine has other nodes, and features do not say of which they are")
    left += [f"{shown(entry.name)}: a process is writing it" for entry in entries if not entry.delete()]
    kept.remove_abandoned()  # of a process that was ended while it decoded
    cache.remove_lists()  # other nodes of this machine make theirs again
    return left


def _private(node: SiteNode) -> list[Path]:
    """Return what a node keeps besides its log: private parts by run, the received model, reports."""
    return sorted(path for path in node.folder.iterdir() if path.name not in LOGS)


def _features() -> list[cache_command.Entry]:
    return [entry for entry in cache_command.entries() if entry.kind == "features"]


def _cached(node: SiteNode) -> list[cache_command.Entry]:
    """Return the decoded images of the node's domain, or of a public set, whose files are in its folder of images."""
    if "data-dir" not in node.config:
        return []
    own = state_folder.named_domains(node.config.get("domain", ""))
    homes = _paths(os.path.expanduser(str(node.config["data-dir"])))  # noqa: PTH111 (never fails)

    def is_own(about: Mapping[str, Any]) -> bool:
        known = same_names.place(about["domain"], own) is not None or about["domain"] == catalog.PUBLIC
        return known and any(path.is_relative_to(home) for path in _paths(str(about["origin"])) for home in homes)

    found = (entry for entry in cache_command.entries() if entry.kind == "images" and "origin" in entry.about)
    return [entry for entry in found if is_own(entry.about)]


def _paths(path: str) -> set[Path]:
    """Return a path as it is written, without .., and as it is without links: a site may be a link."""
    return {Path(os.path.abspath(path)), Path(path).resolve()}  # noqa: PTH100
