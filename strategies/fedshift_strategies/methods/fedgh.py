r"""FedGH strategy [Yi et al., 2023].

Paper: "FedGH: Heterogeneous Federated Learning with Generalized Global Header", Liping Yi, Gang Wang, Xiaoguang Liu,
Zhuan Shi, Han Yu; ACM Multimedia 2023, https://arxiv.org/abs/2303.13137. Reference code: LipingYi/FedGH at commit
ff50ac0 (``FLHetero/FedGH.py``, from "aggregate" on).

Symbols: p_n^k prototype of node n and class k, psi = (W, b) the global head.

    psi <- psi - eta dCE(W p_n^k + b, k)/dpsi, over all (p_n^k, k) of a round; the slopes are those of ``dense``

Deviations: (1) the code's loop steps the optimiser of a node's network, so its head never changes, and its gradients
add up as they are never set to 0: here the head has a step of its own, plain SGD at ``server_lr``; (2) prototypes come
in random order (the code: node by node); (3) rows of classes that no node of a round holds stay as they are: the loss
would push them down.
"""

import numpy as np
from numpy.typing import NDArray

from fedshift_core.methods.fedgh import FedGHParams
from fedshift_core.wire.names import HEAD
from fedshift_strategies.method import Arrays, Floats, generator
from fedshift_strategies.methods import dense
from fedshift_strategies.methods.prototypes import FloatArray, PrototypeStrategy, as_kept, minibatches, uploaded

CLIP = 50.0  # longest gradient of a step, as in the code


class FedGHStrategy(PrototypeStrategy[FedGHParams]):
    """Trains a head for all nodes on their class prototypes.

    Knowledge: ``head/weight`` (C, D) and ``head/bias`` (C,), from the end of round 1.
    """

    sends = (HEAD + "*",)

    def merge_prototypes(self, p: FloatArray, counts: NDArray[np.int64]) -> Arrays:
        """Train the head on the prototypes of this round.

        Raises:
            FederationError: If it comes to numbers that are not finite.
        """
        points, labels = uploaded(p, counts)
        run, params = self.federation, self.params
        kept = self.knowledge or initial(run.num_classes, run.feature_dim, generator(run.seed, "fedgh-initial"))
        weight, bias = (kept[HEAD + name].astype(np.float64) for name in ("weight", "bias"))
        held = np.isin(np.arange(run.num_classes), labels)
        rng = generator(run.seed, "fedgh-order", self.server_round)
        with np.errstate(over="ignore", invalid="ignore"):  # reported in one line afterwards
            for some in minibatches(rng, params.server_epochs, len(labels), params.server_batch):
                head = {"linear1": weight, "bias": bias}
                slopes = dense.slopes(head, points[some].astype(np.float64), labels[some])
                slope_w, slope_b = cut(slopes["linear1"] * held[:, None], slopes["bias"] * held, CLIP)
                weight, bias = weight - params.server_lr * slope_w, bias - params.server_lr * slope_b
        return as_kept({HEAD + "weight": weight, HEAD + "bias": bias}, self.server_round, params.server_lr)


def initial(classes: int, width: int, rng: np.random.Generator) -> Arrays:
    """Return a head before its first round, distributed as PyTorch's linear layer, float32."""
    bound = width**-0.5
    weight, bias = rng.uniform(-bound, bound, (classes, width)), rng.uniform(-bound, bound, classes)
    return {HEAD + "weight": weight.astype(np.float32), HEAD + "bias": bias.astype(np.float32)}


def cut(weight: Floats, bias: Floats, most: float) -> tuple[Floats, Floats]:
    """Scale a gradient in two parts down to a norm of ``most`` in all, where it is longer."""
    norm = float(np.sqrt((weight**2).sum() + (bias**2).sum()))
    scale = min(most / norm, 1.0) if norm > 0 else 1.0
    return weight * scale, bias * scale
