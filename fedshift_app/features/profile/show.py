"""Shown of ``profile=true``: the time of a run by phase."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedshift_core.shown import History, Shown

KEY = "profile"
WRITING = "checkpoint"  # the run folder: metrics, weights, knowledge


def show(history: History) -> Shown:
    """Return the seconds of the whole run by part, on the server and on all nodes together, and their table."""
    if not (history.config.profile and history.rounds):
        return Shown()
    server, nodes, workers = Counter[str](), Counter[str](), 0
    reports = history.of_rounds(KEY)  # those before a resume may not have been measured
    for report in reports:
        workers = max(workers, report["side_by_side"])
        server.update(report["server"])
        nodes.update(report["nodes"] | {"waiting": report["waiting"]})
    total = {
        "rounds": len(reports),
        "side_by_side": workers,
        "server": {**server, WRITING: history.writing},
        "nodes": dict(nodes),
    }
    return Shown(file=total, log=table(total))


def table(profile: Mapping[str, Any]) -> str:
    """Return the summary as text: seconds a round and the share of the total, on the server and on the nodes."""
    rounds = max(profile["rounds"], 1)
    heads = {"server": "the server", "nodes": f"the nodes, {profile['side_by_side']} side by side"}
    lines = [""]
    for side, head in heads.items():
        seconds_by_part = profile[side]
        total = sum(seconds_by_part.values()) or 1.0
        lines.append(f"where the time of {head} went    seconds a round   share")
        lines += [
            f"  {part:42} {seconds / rounds:12.2f} {100 * seconds / total:6.1f} %"
            for part, seconds in sorted(seconds_by_part.items(), key=lambda item: -item[1])
        ]
    return "\n".join([*lines, ""])
