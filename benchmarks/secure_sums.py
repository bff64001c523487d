"""What secure sums cost, by number of nodes and of weights, and how far their rounding is off.

    python benchmarks/secure_sums.py                            # 4, 10 and 20 nodes, 100,000 and 1,000,000 weights
    python benchmarks/secure_sums.py --nodes 50 --weights 11000000

The protocol is played in one process, without messages: times are processor seconds of arithmetic. One node is lost
after it has dealt its shares, which is the dearest case for the server: it takes off one mask for each other node.
"""

import argparse
import sys
import time
from typing import Any

import numpy as np

from fedshift_app.config.registry import table
from fedshift_core.secure.group import Group
from fedshift_core.secure.layout import Layout, Segment
from fedshift_core.secure.protocol import Member
from fedshift_core.secure.recovery import Dealt, Unmasking, empty, traffic
from fedshift_core.secure.statement import Statement

HEAD = (
    "nodes", "weights", "KB more up", "KB more down", "plain MB up", "s a node", "s server", "error", "bound"
)  # fmt: skip
STATED = Statement(1000, (True,) * 10)  # of each node
RANGE = 64.0  # the default of federation.secure_sums_range


def play(nodes: int, weights: int) -> tuple[str, ...]:
    """Return a row of the table: one round with random changes of weights."""
    rng = np.random.default_rng(0)
    layout = Layout((Segment("arrays/w", (weights,), RANGE),), nodes)
    states: list[dict[str, Any]] = [{} for _ in range(nodes)]
    members = [Member(state, index) for index, state in enumerate(states)]
    spent = [0.0] * nodes

    def timed(index: int, call: Any, *given: Any) -> Any:
        began = time.process_time()
        value = call(*given)
        spent[index] += time.process_time() - began
        return value

    keys = [timed(i, member.keys, "run", 1) for i, member in enumerate(members)]
    group = Group(
        1, tuple(range(nodes)), tuple(key[0] for key in keys), tuple(key[1] for key in keys), (STATED,) * nodes,
        (1.0,) * nodes, 3, 3.0,
    )  # fmt: skip
    dealt = Dealt(group)
    for i, member in enumerate(members):
        dealt.take(i, *timed(i, member.deal, group))
    total, exact = empty(weights), np.zeros(weights)
    for i, member in enumerate(members):
        timed(i, member.receive, 1, *dealt.for_node(i))
        if i:  # the first is lost
            change = rng.normal(0, 0.01, weights)
            exact += change
            total += timed(i, lambda m, c: m.mask(layout.vector({"arrays/w": c})), member, change)
    unmasking = Unmasking(dealt, list(range(1, nodes)))
    for i in range(1, nodes):
        unmasking.take(i, timed(i, members[i].reveal, 1, unmasking.alive, unmasking.lost))
    began = time.process_time()
    mean = layout.values(unmasking.unmasked(total), nodes - 1)["arrays/w"] / (nodes - 1)
    server = time.process_time() - began
    error = float(np.abs(mean - exact / (nodes - 1)).max())
    up, down = traffic(nodes, len(STATED.classes))
    return (
        str(nodes), f"{weights:,}", f"{up / 1e3:.1f}", f"{down / 1e3:.1f}", f"{4e-6 * weights * nodes:.1f}",
        f"{sum(spent[1:]) / (nodes - 1):.2f}", f"{server:.2f}", f"{error:.1e}", f"{layout.error(RANGE):.1e}",
    )  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 10, 20])
    parser.add_argument("--weights", type=int, nargs="+", default=[100_000, 1_000_000])
    given = parser.parse_args()
    if min(given.nodes) < 4 or min(given.weights) < 1:
        parser.error("--nodes from 4 up, of which one is lost and three hide each other; --weights from 1 up")
    rows = [play(nodes, weights) for weights in given.weights for nodes in given.nodes]
    sys.stdout.write(table(HEAD, rows) + "\n")


if __name__ == "__main__":
    main()
