"""The table of where a run's time went (``profile=true``)."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedshift_core.wire.names import WORK

WRITING = "checkpoint"  # the run folder: metrics, weights, knowledge


def summary(rounds: Iterable[Mapping[str, Any]], writing: float) -> dict[str, Any]:
    """Add up the reports of all rounds (``strategies.features.profile``).

    Args:
        rounds: What each round reported.
        writing: Seconds that the run folder took.

    Returns:
        Seconds of the whole run by part, on the server and on all nodes together; ``waiting`` is one of the nodes'.
    """
    server: dict[str, float] = {}
    nodes: dict[str, float] = {}
    number, places = 0, 0
    for report in filter(None, rounds):  # rounds before the run was resumed may not have been measured
        number += 1
        places = max(places, report["side_by_side"])
        # A run of an earlier version, resumed, may have other names from its nodes.
        known = {part: seconds for part, seconds in report["nodes"].items() if part in WORK}
        for total, parts in ((server, report["server"]), (nodes, known | {"waiting": report["waiting"]})):
            for part, seconds in parts.items():
                total[part] = total.get(part, 0.0) + seconds
    return {"rounds": number, "side_by_side": places, "server": server | {WRITING: writing}, "nodes": nodes}


def table(found: Mapping[str, Any]) -> str:
    """Return the summary as text: seconds a round and the share of the whole, on the server and on the nodes."""
    rounds = max(found["rounds"], 1)
    heads = {"server": "the server", "nodes": f"the nodes, {found['side_by_side']} side by side"}
    lines = [""]
    for side, head in heads.items():
        parts = found[side]
        whole = sum(parts.values()) or 1.0
        lines.append(f"where the time of {head} went    seconds a round   share")
        lines += [
            f"  {part:42} {seconds / rounds:12.2f} {100 * seconds / whole:6.1f} %"
            for part, seconds in sorted(parts.items(), key=lambda item: -item[1])
        ]
    return "\n".join([*lines, ""])
