r"""Server optimisers (``server``). The average of a round proposes a step, and the next weights come of it.

The rules are those of Flower's own strategies, number for number. With w the weights that were sent, a the merged
ones (the average, or what ``aggregation.robust`` makes of it), :math:`\Delta=a-w` and t the round from 1:

    fedavgm     m = mu m - Delta, w' = w - eta m; in the first round m = -Delta
    fedadagrad  v = v + Delta^2, w' = w + eta Delta / (sqrt(v) + tau)
    fedadam     m = b1 m + (1 - b1) Delta, v = b2 v + (1 - b2) Delta^2,
                w' = w + eta_t m / (sqrt(v) + tau), eta_t = eta sqrt(1 - b2^(t+1)) / (1 - b1^(t+1))
    fedyogi     m as fedadam, v = v - (1 - b2) Delta^2 sign(v - Delta^2), w' = w + eta m / (sqrt(v) + tau)

m and v begin at 0. FedAvgM: Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification", 2019, https://arxiv.org/abs/1909.06335; the others: Reddi et al., "Adaptive Federated
Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295.

Only parameters take a step. BatchNorm's running statistics, other buffers and arrays of integers are no parameters:
they are the merged ones (Flower's strategies, which see arrays only, step them as well, and a running variance can so
become negative). The result of a step goes back to the type of the weights; in Flower FedAdam's becomes float64.

A method that overrides ``merge`` is refused: it may be a server optimiser itself, and may keep a state that holds only
if what it returns is what the nodes are sent.
"""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedshift_app.features.server_optimizer import Options
from fedshift_core.arrays import Arrays
from fedshift_core.wire.records import encode
from fedshift_strategies.features.base import Merge, ServerFeature, Training, Update
from fedshift_strategies.federation.updates import decode

FIRST, SECOND = "m/", "v/"  # prefixes of the moments, before the name of a weight
Array = NDArray[Any]


def _rule(config: Options, merged: Array, sent: Array, moments: Arrays, server_round: int) -> tuple[Array, Arrays]:
    """Return the next values of one array, and its moments; every operation as Flower's strategy has it."""
    rate: Any = config.rate
    if config.optimizer == "fedavgm":
        m = sent - merged
        if FIRST in moments:
            m = config.momentum * moments[FIRST] + m
        return sent - rate * m, {FIRST: m} if config.momentum else {}
    b1, b2 = (0.0, 0.0) if config.optimizer == "fedadagrad" else (config.beta1, config.beta2)
    zero, delta = np.zeros_like(merged), merged - sent
    square = delta**2
    m, v = b1 * moments.get(FIRST, zero) + (1 - b1) * delta, moments.get(SECOND, zero)
    if config.optimizer == "fedadagrad":
        v = v + square
    elif config.optimizer == "fedyogi":
        v = v - (1.0 - b2) * square * np.sign(v - square)
    else:
        v = b2 * v + (1 - b2) * square
        rate = rate * np.sqrt(1 - np.power(b2, server_round + 1.0)) / (1 - np.power(b1, server_round + 1.0))
    return sent + rate * m / (np.sqrt(v) + config.tau), {FIRST: m, SECOND: v}


class ServerOptimizer(ServerFeature):
    """Makes the average a step, as the section ``server`` says; its ``state`` are the moments."""

    prefixes = (FIRST, SECOND)

    def merge(self, updates: list[Update], weights: list[float], training: Training, next: Merge) -> ArrayRecord:
        """Return the next shared weights, in the order and the types of the merged ones."""
        config, merged, moments = self.run.config.server, next(updates, weights), self.state
        self.state = {}
        if config.optimizer == "fedavgm" and config.rate == 1 and config.momentum == 0:
            return merged  # w - (w - a) may miss a by a rounding; Flower has it so, too
        before, after = decode(training.weights), decode(merged)
        for name in self.run.trained(after):
            own = {key: moments[key + name] for key in (FIRST, SECOND) if key + name in moments}
            stepped, own = _rule(config, after[name], before[name], own, training.server_round)
            after[name] = np.asarray(stepped, after[name].dtype)
            self.state |= {key + name: np.asarray(moment) for key, moment in own.items()}
        return encode(after)
