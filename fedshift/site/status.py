"""``fedshift site status``: the real nodes of this machine."""

import json
from typing import Any

from fedshift.run import columns as tables
from fedshift.site import nodes
from fedshift.site.nodes import SiteNode
from fedshift_app.node import chained_log, state_folder
from fedshift_app.node.chained_log import Head, LogError
from fedshift_core.limits import MOST_NAME, WHOLE_PATH, shown


def lines() -> list[str]:
    """Return a table with a line for each node, or a line that there is none."""
    here = nodes.nodes()
    where = shown(state_folder.state_dir(), WHOLE_PATH)
    if not here:
        return [f"{where}: no node has worked on this machine"]
    head = ("node", "domain", "state", "started", "lines logged", "last sent")
    return tables.columns([head, *map(_row, here)], "", ruled=True)


def as_json() -> str:
    """Return the nodes as JSON."""
    return json.dumps([_fields(node) for node in nodes.nodes()], indent=2)


def _row(node: SiteNode) -> tuple[str, ...]:
    fields = _fields(node)
    texts = (fields[key] for key in ("node", "domain", "state", "started", "lines", "last_sent"))
    return tuple("-" if text is None or text == "" else shown(text, MOST_NAME) for text in texts)


def _fields(node: SiteNode) -> dict[str, Any]:
    state = "runs" if node.runs else "switched off" if node.is_off else "does not run"
    log = node.folder / chained_log.LOG_FILE
    size = log.stat().st_size if log.is_file() else 0
    count: int | str | None = "unknown" if size else None
    try:
        if (head := Head.read(node.folder)) is not None:
            count = head.lines if size >= head.bytes else "lost"
    except LogError:
        count = "unknown"
    last = chained_log.stamp(log.stat().st_mtime) if log.is_file() else None
    return {
        "node": node.name, "domain": str(node.config.get("domain", "")), "state": state, "started": node.started,
        "lines": count, "last_sent": last,
    }  # fmt: skip
