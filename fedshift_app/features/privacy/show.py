"""Shown of ``privacy``: the epsilon that each node has spent. No epsilon is averaged."""

from collections.abc import Mapping
from typing import Any

from fedshift_core.shown import History, Shown

KEY = "privacy"


def show(history: History) -> Shown:
    """Return the last epsilon of each node and the largest, a line of them, and what was promised."""
    privacy = history.config.privacy
    promise = f"Privacy: {privacy.name}, delta {privacy.delta:g}; what it spent is among the notes on scores."
    if privacy.name == "none":
        promise = "Privacy: none was promised; weights can tell of single images."
    epsilon = {node: spent for line in history.of_rounds(KEY) for node, spent in line["epsilon"].items()}
    if privacy.of_updates and history.rounds and (last := history.rounds[-1].server_round):
        epsilon = {str(node.index): privacy.spent(last + history.repeated) for node in history.nodes}
    ordered = dict(sorted(epsilon.items(), key=lambda item: int(item[0])))
    spent = history.results.get(KEY) or (
        {"epsilon": ordered, "largest": max(ordered.values()), "delta": privacy.delta} if ordered else {}
    )
    if not spent:
        return Shown(protection=(promise,))
    return Shown(
        {KEY: spent}, facts=(_text(spent, "all images" if privacy.of_updates else "one image"),), protection=(promise,)
    )


def _text(spent: Mapping[str, Any], images: str) -> str:
    lowest, highest = f"{min(spent['epsilon'].values()):.3g}", f"{spent['largest']:.3g}"
    of_nodes = highest if lowest == highest else f"{lowest} to {highest} by node"
    return f"privacy: epsilon {of_nodes} at delta {spent['delta']:g}, of {images} of a node"
