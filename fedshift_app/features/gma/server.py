r"""Gradient masked averaging, ``aggregation.gma_tau`` (FedGMA) [Tenison et al., 2023].

Paper: "Gradient Masked Averaging for Federated Learning", Irene Tenison, Sai Aravind Sreeramadas, Vaikkunth Mugunthan,
Edouard Oyallon, Irina Rish, Eugene Belilovsky; TMLR 2023, https://arxiv.org/abs/2201.11986. Code of others:
inouye-lab/FedDG_Benchmark at commit da58f76 (``src/server.py``, ``FedGMA``), whose mask is another one.

Symbols: w a number of the weights that were sent, w_n that of node n, p_n its weight, N nodes, tau the threshold.

    A = |sum_n sign(w_n - w)| / N;   m = 1 where A >= tau, else A;   w <- w + m sum_n p_n (w_n - w)

Where the nodes agree on the direction, the average moves in full; where they do not, it moves less, and not at all
where as many go up as go down. The paper's step of the server is ``server: {optimizer: fedavgm, momentum: 0, lr:
ETA}``; as in the paper, other server optimisers take the masked change in place of the plain one.

BatchNorm's statistics, other buffers and arrays of integers are averaged without a mask.
"""

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedshift_core.wire.records import encode
from fedshift_strategies.features.base import Merge, ServerFeature, Training, Update
from fedshift_strategies.federation.updates import average, decode

Signs = NDArray[np.int32]


def moved(
    sent: NDArray[np.floating], mean: NDArray[np.floating], agreement: NDArray[np.float64], tau: float
) -> NDArray[np.floating]:
    """Return an array after the masked step, in the type of the mean.

    Args:
        sent: w.
        mean: sum_n p_n w_n, of the same shape.
        agreement: A, of the same shape.
        tau: The agreement from which a number moves in full, above 0.
    """
    mask = np.where(agreement >= tau, 1.0, agreement)
    step = mask * (mean.astype(np.float64) - sent)
    return np.where(mask == 1, mean, sent + step).astype(mean.dtype)


class GradientMasks(ServerFeature):
    """Merges with masks where ``aggregation.gma_tau`` is above 0."""

    def merge(self, updates: list[Update], weights: list[float], training: Training, next: Merge) -> ArrayRecord:
        """Return the next shared weights, in place of the average and in its types; the list is emptied."""
        sent, nodes = decode(training.weights), len(updates)
        signs: dict[str, Signs] = {name: np.zeros(sent[name].shape, np.int32) for name in self.run.trained(sent)}
        for update in updates:
            arrays = update.arrays()
            for name in signs:
                signs[name] += np.sign(arrays[name] - sent[name]).astype(np.int32)
        merged, tau = decode(average(updates, weights)), self.run.config.aggregation.gma_tau
        for name, total in signs.items():
            merged[name] = moved(sent[name], merged[name], np.abs(total) / nodes, tau)
        return encode(merged)
