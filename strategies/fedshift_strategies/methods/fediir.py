r"""FedIIR strategy [Guo et al., 2023].

Paper: "Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships", Yaming Guo, Kai
Guo, Xiaofeng Cao, Tieru Wu, Yi Chang; ICML 2023, https://proceedings.mlr.press/v202/guo23b.html. Reference code:
YamingGuo98/FedIIR at commit 3e7a785 (``domainbed/algorithms.py``, ``mean_grad``).

Symbols: g_n gradient of node n's cross-entropy with respect to the head, at the weights of the round, G their moving
average, rho its decay.

    G <- rho G + (1 - rho) mean_n g_n, over the nodes of the round;  G = 0 before round 1

Deviations: (1) nodes use G in the round after the one whose gradients are in it: the code asks all nodes for their
gradients first and sends G before they train, a second exchange with the weights in each round; (2) each node counts
the same in the mean (the code: each batch).
"""

import numpy as np
from numpy.typing import NDArray

from fedshift_core.disclosure import MODEL, of_shared
from fedshift_core.methods.fediir import FedIIRParams
from fedshift_strategies.method import Declaration, DomainStrategy, Update, decode
from fedshift_strategies.methods.heads import head_of

GRADIENT = "head-gradient"  # of a node, and G as it is sent, (P,)
FloatArray = NDArray[np.float32]


class FedIIRStrategy(DomainStrategy[FedIIRParams]):
    """Averages weights as FedAvg does, and head gradients over nodes and rounds.

    Knowledge: ``head-gradient`` (P,), from the end of round 1.
    """

    sends = (GRADIENT,)
    contributes = {GRADIENT: ("P",)}
    behind = {GRADIENT: "class"}
    scores_with_knowledge = False

    def expected(self) -> Declaration:
        """Return one number for each weight of the head; BatchNorm's statistics in a decoder are none."""
        if self.params.lambda_iir == 0:
            return {}
        head = [array for name, array in head_of(decode(self.sent)).items() if of_shared(name) == MODEL]
        return {GRADIENT: (sum(array.size for array in head if array.dtype.kind == "f"),)} if head else self.contributes

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Move G towards the mean of this round's gradients."""
        if self.params.lambda_iir > 0:
            gradients = [update.knowledge[GRADIENT] for update in updates]
            self.knowledge = {GRADIENT: moved(self.knowledge.get(GRADIENT), gradients, self.params.ema)}


def moved(past: FloatArray | None, gradients: list[FloatArray], decay: float) -> FloatArray:
    r"""Return :math:`\rho G+(1-\rho)\frac1N\sum_ng_n`, (P,), float32.

    Args:
        past: G; None stands for zeros.
        gradients: g_n of each node of the round, (P,).
        decay: rho.
    """
    mean = np.mean(gradients, axis=0, dtype=np.float64)
    kept = 0.0 if past is None else decay * past.astype(np.float64)
    return np.asarray(kept + (1 - decay) * mean, np.float32)
