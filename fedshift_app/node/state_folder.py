"""The folder of a real node on its own disk: what it remembers, and the log of what leaves it."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift_core import same_names

#: Environment variable: where real nodes keep what they remember.
STATE_DIR = "FEDSHIFT_STATE"
LEDGERS = "ledgers"  # the folder of ledgers (``fedshift_app.node.ledger``), next to those of nodes


def state_dir() -> Path:
    """Return ``$FEDSHIFT_STATE``, or ``~/.local/state/fedshift``."""
    named = os.environ.get(STATE_DIR, "")
    return Path(named).expanduser() if named else Path.home() / ".local" / "state" / "fedshift"


def node_folder(partition_id: int, domain: str, data_dir: str) -> Path:
    """Return the folder of a real node: by its number, or by its domain and folder where it was given none.

    Args:
        partition_id: Its number; below 0 for none.
        domain: Its domain; a folder under another spelling of it (:mod:`fedshift_core.same_names`) is the node's, too.
        data_dir: The folder of its images.
    """
    if partition_id >= 0:
        return state_dir() / f"node-{partition_id}"
    ending = f"-{hashlib.sha256(data_dir.encode()).hexdigest()[:12]}"
    name = domain.replace("/", "_").replace("\0", "_")
    there = sorted(path.name for path in state_dir().glob(f"*{ending}"))
    others = (kept for kept in there if same_names.same(kept.removesuffix(ending), name))
    return state_dir() / (f"{name}{ending}" if f"{name}{ending}" in there else next(others, f"{name}{ending}"))


def is_of_node(name: str) -> bool:
    """Tell whether a folder in :func:`state_dir` is a node's, by its name."""
    return re.fullmatch(r"node-\d+|.*-[0-9a-f]{12}", name, re.DOTALL) is not None


def named_domains(given: object) -> tuple[str, ...]:
    """Return the domains that a ``--node-config`` names (``domain="north,south"``), as it writes them; home first."""
    return tuple(name.strip() for name in str(given).split(","))


def own_folder(node_config: Mapping[str, Any]) -> Path | None:
    """Return the folder of the node that was started with a ``--node-config``; None of a simulated one.

    No message is needed for it: it is the same whatever a server sends.
    """
    if not node_config.keys() & {"domain", "data-dir"}:
        return None
    number = node_config.get("partition-id", -1)
    number = number if isinstance(number, int) and not isinstance(number, bool) else -1
    data_dir = str(Path(os.path.expanduser(str(node_config.get("data-dir", "")))))  # noqa: PTH111 (never fails)
    return node_folder(number, named_domains(node_config.get("domain", ""))[0], data_dir)
