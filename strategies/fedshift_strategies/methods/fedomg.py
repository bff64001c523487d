"""FedOMG strategy [Nguyen et al., 2025].

Paper: "Federated Domain Generalization with Data-free On-server Matching Gradient", Trong-Binh Nguyen, Minh-Duong
Nguyen, Jinsun Park, Quoc-Viet Pham, Won Joo Hwang, ICLR 2025; https://arxiv.org/abs/2501.14653. Reference code:
skydvn/FedOMG, commit ac53731 (``system/flcore/servers/server_OMG.py``).

Symbols: g_n = w_n - w^t change of node n, q its weight, g = sum_n q_n g_n FedAvg's change, Gamma weights of nodes on
the simplex, g_Gamma = sum_n Gamma_n g_n, kappa radius, eta rate of the server.

    Gamma = argmin <g_Gamma, g> + kappa |g| |g_Gamma|
    w^{t+1} = w^t + eta (g + kappa |g| / |g_Gamma| g_Gamma) / (1 + kappa^2)

The minimum is sought over logits of Gamma by ``steps`` of SGD, and the best of all is taken, as in the code.

Deviations: (1) buffers and arrays of integers are averaged as FedAvg has them (in the code they stay as the server
began with them); (2) of 50 nodes the code doubles the rate, here ``rate`` holds for any number; (3) by
``aggregation.weights`` q may be others than equal ones, which the code has.
"""

import numpy as np
from flwr.app import ArrayRecord
from scipy.special import softmax

from fedshift_core.methods.fedomg import FedOMGParams
from fedshift_strategies.method import DomainStrategy, Floats, Update, average, decode, encode

SMALL = 1e-4  # added under roots and to a norm that is divided by, as in the code
DROP_AFTER, DROP = 30, 0.5  # the rate of SGD is halved after so many steps, as in the code


class FedOMGStrategy(DomainStrategy[FedOMGParams]):
    """Moves the weights by FedAvg's change and by a mixture of the nodes' changes that lags behind in it."""

    sends = ()

    @classmethod
    def weighs_alike(cls, params: FedOMGParams) -> bool:
        """Weigh each node the same, unless the method is off."""
        return params.kappa > 0

    def merge(self, updates: list[Update], weights: list[float]) -> ArrayRecord:
        """Return the sent weights, moved on; buffers are averaged."""
        p = self.params
        if p.kappa == 0 and p.server_lr == 1:
            return super().merge(updates, weights)
        sent = decode(self.sent)
        trained = self.federation.trained(sent)
        received = [update.arrays() for update in updates]
        gram = np.zeros((len(received),) * 2)
        for name in trained:
            flat = np.stack([arrays[name].astype(np.float64) - sent[name] for arrays in received])
            flat = flat.reshape(len(received), -1)
            gram += flat @ flat.T
        shares = mixture(gram, np.array(weights), p)
        merged = decode(average(updates, weights))
        for name in trained:
            change = sum(
                share * (arrays[name].astype(np.float64) - sent[name])
                for share, arrays in zip(shares, received, strict=True)
            )
            merged[name] = (sent[name] + p.server_lr * change).astype(sent[name].dtype)
        return encode(merged)


def mixture(gram: Floats, q: Floats, params: FedOMGParams) -> Floats:
    """Return by how much each node's change goes into the step, before the rate of the server, (N,).

    Args:
        gram: Inner products of the nodes' changes, (N, N).
        q: Weights of the nodes, 1 in sum.
        params: kappa and how Gamma is sought.
    """
    kappa = params.kappa
    if kappa == 0:
        return q
    a = gram / np.sqrt(np.diag(gram) + SMALL).mean() ** 2
    b = a @ q  # inner products with FedAvg's change
    radius = kappa * np.sqrt(q @ b + SMALL)
    gamma = least(a, b, radius, params)
    along = radius / (np.sqrt(gamma @ a @ gamma + SMALL) + SMALL)
    return np.asarray((q + gamma * along) / (1 + kappa**2))


def least(a: Floats, b: Floats, radius: float, params: FedOMGParams) -> Floats:
    r"""Return the best :math:`\Gamma` that SGD finds for :math:`\Gamma^\top b+r\sqrt{\Gamma^\top a\Gamma}`, (N,).

    Args:
        a: Inner products, (N, N).
        b: Those with FedAvg's change, (N,).
        radius: r.
        params: Steps, rate and momentum.
    """
    logits, moved = np.zeros(len(b)), np.zeros(len(b))
    best, lowest = np.full(len(b), 1 / len(b)), np.inf
    for step in range(params.steps + 1):
        gamma = softmax(logits)
        length = np.sqrt(gamma @ a @ gamma + SMALL)
        value = float(gamma @ b + radius * length)
        if value < lowest:
            best, lowest = gamma, value
        slope = b + radius * (a @ gamma) / length
        moved = params.momentum * moved + gamma * (slope - gamma @ slope)
        logits = logits - params.rate * DROP ** (step // DROP_AFTER) * moved
    return best
