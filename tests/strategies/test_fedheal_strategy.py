"""FedHEAL on the server: masks, weights and merge against loops; what it keeps; what both switches leave."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from support import federation, node

from fedshift_core.arrays import Arrays
from fedshift_core.wire.records import encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.updates import Update, decode
from fedshift_strategies.methods.fedheal import FedHEALParams, FedHEALStrategy

NAMES = {"a.weight": (3, 2), "a.bias": (3,), "b.running_mean": (2,), "b.num_batches_tracked": ()}
BUFFERS = ("b.running_mean", "b.num_batches_tracked")


def arrays(seed: int, batches: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    by_name: Arrays = {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in NAMES.items()}
    return by_name | {"b.num_batches_tracked": np.array(batches, np.int64)}


def strategy(rounds: int = 9, **params: Any) -> FedHEALStrategy:
    return FedHEALStrategy(federation(buffers=BUFFERS, rounds=rounds), FedHEALParams(**params), lambda *_: None)


def played(server: DomainStrategy, sent: Arrays, replies: dict[int, Arrays]) -> tuple[list[float], Arrays]:
    """Let the server merge what nodes trained of what it sent; node n has 10 + n images."""
    server._global = encode(sent)
    updates = [Update(node(n, (10, n)), encode(result), {}, 10 + n, {}) for n, result in replies.items()]
    weights = server.node_weights(updates)
    merged = decode(server.merge(updates, weights))
    return weights, {name: array.copy() for name, array in merged.items()}


#: Where the first two tensors end in a row of all, and the buffers begin.
ENDS = (6, 9)


def row(arrays: Arrays) -> NDArray[np.float64]:
    return np.concatenate([np.ravel(arrays[name]).astype(np.float64) for name in NAMES])


class Slow:
    """The method as the paper writes it, over a row of all weights, and all it knows in plain dictionaries."""

    def __init__(self, tau: float = 0.3, beta: float = 0.4) -> None:
        self.tau, self.beta = Fraction(str(tau)), beta
        self.rises: dict[int, list[NDArray[np.bool_]]] = {}
        self.p: dict[int, float] = {}
        self.steps: dict[int, float] = {}

    def merge(self, sent: Arrays, replies: dict[int, Arrays]) -> tuple[list[float], NDArray[np.float64]]:
        u = {n: row(sent) - row(result) for n, result in replies.items()}
        kept, d = {}, {}
        for n, update in u.items():
            before = self.rises.setdefault(n, [])
            alike = [sum(was[i] == (update[i] >= 0) for was in before) for i in range(len(update))]
            m = np.array([not before or Fraction(int(k), len(before)) > self.tau for k in alike])
            before.append(update >= 0)
            kept[n] = np.where(m, update, np.nan)
            d[n] = sum(np.linalg.norm(part) for part in np.split(np.nan_to_num(kept[n]), ENDS)[:2])
        for n in replies:
            self.steps[n] = (1 - self.beta) * self.steps.get(n, 0.0) + self.beta * float(d[n] / sum(d.values()))
            self.p[n] = self.p.get(n, 1 / len(replies)) + self.steps[n]
        p = {n: self.p[n] / sum(self.p[k] for k in replies) for n in replies}
        counted = sum(p[n] * ~np.isnan(kept[n]) for n in replies)
        change = sum(p[n] * np.nan_to_num(kept[n]) for n in replies)
        return list(p.values()), row(sent) - np.divide(change, counted, out=np.zeros(len(change)), where=counted > 0)


PRESENT = [(0, 1, 2), (0, 1, 2), (1, 2), (0, 1, 2), (0, 2, 3), (0, 1, 2, 3)]


@pytest.mark.parametrize(("tau", "present_in"), [(0.3, PRESENT), (0.6, PRESENT), (0.3, 3 * PRESENT + [(0, 1, 2)] * 4)])
def test_rounds_against_the_paper_with_nodes_that_come_and_go(tau: float, present_in: list[tuple[int, ...]]) -> None:
    server, slow = strategy(tau=tau, rounds=30), Slow(tau)
    sent = arrays(0)
    left_out = 0
    for server_round, present in enumerate(present_in, 1):
        replies = {n: arrays(100 * server_round + n, batches=5 * server_round) for n in present}
        weights, merged = played(server, sent, replies)
        wanted, slowly = slow.merge(sent, replies)
        assert_allclose(weights, wanted, rtol=1e-6)
        assert_allclose(row(merged)[:-1], slowly[:-1], rtol=1e-5, atol=1e-6)
        assert merged[BUFFERS[1]] == np.rint(slowly[-1])
        assert all(merged[name].dtype == sent[name].dtype for name in NAMES)
        left_out += int((row(merged) == row(sent)).sum()) if server_round > 1 else 0
        sent = merged
    assert left_out > 0  # somewhere no update was consistent, and the weight stayed
