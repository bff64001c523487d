"""``fedshift site status``: the real nodes of this machine."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedshift.run import columns as tables
from fedshift.site.nodes import SiteNode
from fedshift_app.node import chained_log, ledger, policy
from fedshift_app.node.chained_log import Head, LogError
from fedshift_app.run.metrics import Sample
from fedshift_core.disk_use import bytes_in
from fedshift_core.limits import MOST_NAME, shown

#: Numbers of ``--metrics``, by name.
ABOUT = {
    "node_runs": "1 if its SuperNode runs",
    "node_switched_off": "1 if its owner has switched it off",
    "node_last_sent": "when something last left it, in seconds since 1970",
    "node_log_bytes": "bytes of the log of what left it",
    "node_bytes": "bytes of its folder of state",
    "node_free_bytes": "free bytes on the disk of this folder",
    "node_epsilon": "epsilon that all runs have spent, at the delta of its budget",
    "node_epsilon_left": "epsilon that its budget leaves",
}


def table(here: list[SiteNode]) -> list[str]:
    """Return a table with a line for each node."""
    rows = [
        [shown("-" if value in (None, "") else value, MOST_NAME) for value in fields(node).values()] for node in here
    ]
    return tables.columns([("node", "domain", "state", "started", "lines logged", "last sent"), *rows], "", ruled=True)


def fields(node: SiteNode) -> dict[str, Any]:
    """Return a node as JSON has it."""
    size, sent = _log(node)
    try:
        head = Head.read(node.folder)
        lines = (head.lines if size >= head.bytes else "lost") if head else "unknown" if size else None
    except LogError:
        lines = "unknown"
    return {
        "node": node.name,
        "domain": str(node.config.get("domain", "")),
        "state": "runs" if node.runs else "switched off" if chained_log.is_off(node.folder) else "does not run",
        "started": node.started,
        "lines": lines,
        "last_sent": None if sent is None else chained_log.stamp(sent),
    }


def samples(here: Sequence[SiteNode]) -> list[Sample]:
    """Return the numbers of all nodes, those of one name together; a number that a node lacks is None.

    Raises:
        FedShiftError: If a policy or a ledger cannot be read.
    """
    numbers = {node.name: _numbers(node) for node in here}
    return [Sample(name, each.get(name), {"node": node}) for name in ABOUT for node, each in numbers.items()]


def _log(node: SiteNode) -> tuple[int, float | None]:
    """Return the bytes of a node's log, and when it was last written."""
    log = node.folder / chained_log.LOG_FILE
    found = log.stat() if log.is_file() else None
    return (found.st_size, found.st_mtime) if found else (0, None)


def _numbers(node: SiteNode) -> dict[str, float | None]:
    size, sent = _log(node)
    numbers: dict[str, float | None] = {
        "node_runs": node.runs,
        "node_switched_off": chained_log.is_off(node.folder),
        "node_last_sent": sent,
        "node_log_bytes": size,
        "node_bytes": bytes_in(node.folder),
        "node_free_bytes": shutil.disk_usage(node.folder).free,
    }
    budget = policy.load(str(node.config.get(policy.POLICY, policy.STRICT))).policy.budget
    if budget:
        spent = ledger.of_images(Path(str(node.config["data-dir"])).expanduser()).read().epsilon(budget.delta)
        numbers |= {"node_epsilon": spent, "node_epsilon_left": max(budget.epsilon - spent, 0.0)}
    return {name: None if value is None else float(value) for name, value in numbers.items()}
