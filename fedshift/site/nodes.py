"""The real nodes of this machine: their folders, and what `fedshift supernode` noted when it started one."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedshift.run import arguments
from fedshift.run.launch import processes
from fedshift_app.node import chained_log, state_folder
from fedshift_core import atomic_io
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, shown

STARTED_FILE = "supernode.json"


@dataclass(frozen=True)
class SiteNode:
    """A node of this machine.

    Attributes:
        folder: Where it keeps what it remembers.
        config: What it was started with (``--node-config``); empty where `fedshift supernode` never started it.
        process: Its SuperNode, as ``processes.this_process`` names it; empty likewise.
        started: When, in UTC.
    """

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    process: str = ""
    started: str = ""

    @property
    def name(self) -> str:
        """The name by which commands take it."""
        return self.folder.name

    @property
    def runs(self) -> bool:
        """Whether its SuperNode runs."""
        return bool(self.process) and processes.is_running(self.process)


def note_start(node_config: Mapping[str, Any]) -> None:
    """Note that this process is the SuperNode of a node; nothing is noted of one without images of its own.

    Raises:
        ConfigError: If the owner has switched the node off.
        DiskError: If it cannot be noted.
    """
    folder = state_folder.own_folder(node_config)
    if folder is None:
        return
    if chained_log.is_off(folder):
        raise ConfigError(
            f"the owner of {shown(folder.name)} has switched it off", f"to take that back: {undo_command(folder.name)}"
        )
    started = {"process": processes.this_process(), "started": chained_log.stamp(time.time())}
    content = json.dumps(started | {"node_config": {**node_config}})
    with atomic_io.writing(folder), chained_log.locked(folder):
        atomic_io.write_durably(folder / STARTED_FILE, content.encode(), private=True)


def undo_command(name: str) -> str:
    """Return the command that lets a node be started again."""
    return f"fedshift site stop {shown(name, MOST_NAME)} --undo"


def nodes() -> list[SiteNode]:
    """Return the nodes of this machine, by name: all that have a folder of state; other folders are no node's."""
    try:
        folders = sorted(path for path in state_folder.state_dir().iterdir() if path.is_dir() and not path.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [_node(folder) for folder in folders if state_folder.is_of_node(folder.name)]


def names() -> list[str]:
    """Return the names of the nodes of this machine."""
    return [node.name for node in nodes()]


def named(name: str) -> SiteNode:
    """Return the node of a name; with an empty one the only node of this machine.

    Raises:
        ConfigError: If there is none, or there are several and none is named.
    """
    here = {node.name: node for node in nodes()}
    return arguments.one_of("NODE", name, here, f"{shown(state_folder.state_dir())} ($FEDSHIFT_STATE)")


def _node(folder: Path) -> SiteNode:
    try:
        content = json.loads((folder / STARTED_FILE).read_text(encoding="utf-8"))
        return SiteNode(folder, dict(content["node_config"]), str(content["process"]), str(content["started"]))
    except (OSError, ValueError, KeyError, TypeError):  # never started by `fedshift supernode`
        return SiteNode(folder)
