"""``fedshift site status``: the real nodes of this machine."""

from typing import Any

from fedshift.run import columns as tables
from fedshift.site.nodes import SiteNode
from fedshift_app.node import chained_log
from fedshift_app.node.chained_log import Head, LogError
from fedshift_core.limits import MOST_NAME, shown


def table(here: list[SiteNode]) -> list[str]:
    """Return a table with a line for each node."""
    rows = [
        [shown("-" if value in (None, "") else value, MOST_NAME) for value in fields(node).values()] for node in here
    ]
    return tables.columns([("node", "domain", "state", "started", "lines logged", "last sent"), *rows], "", ruled=True)


def fields(node: SiteNode) -> dict[str, Any]:
    """Return a node as JSON has it."""
    log = node.folder / chained_log.LOG_FILE
    found = log.stat() if log.is_file() else None
    size = found.st_size if found else 0
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
        "last_sent": chained_log.stamp(found.st_mtime) if found else None,
    }
