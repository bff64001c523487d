"""FedTHE strategy [Jiang & Lin, 2023].

Paper: "Test-Time Robust Personalization for Federated Learning", Liangze Jiang, Tao Lin; ICLR 2023,
https://arxiv.org/abs/2205.10920. Reference code: LINs-lab/FedTHE at commit 9eeff19 (``pcode/master.py``).

Symbols: z^p_n the mean feature of the training images of node n, N_t the nodes of round t.

    z^g = 1/|N_t| sum_{n in N_t} z^p_n

Deviations: weights are averaged by number of images, the code's plain mean is ``aggregation.weights=equal``.
"""

import numpy as np

from fedshift_core.methods.fedthe import FedTHEParams
from fedshift_strategies.method import Declaration, DomainStrategy, Update


class FedTHEStrategy(DomainStrategy[FedTHEParams]):
    """Averages body and global head as FedAvg does, and the nodes' mean features, each node the same.

    Knowledge: ``feature`` (D,).
    """

    sends = ("feature",)

    contributes = {"feature": ("D",)}
    behind = {"feature": "sum over classes"}
    summed = {"feature": "each"}

    def expected(self) -> Declaration:
        """Return the mean feature, where there are two heads to choose from."""
        return self.contributes if self.params.personal_head else {}

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Average the mean features of this round's nodes."""
        if self.params.personal_head:
            mean = np.stack([update.knowledge["feature"] for update in updates]).mean(axis=0, dtype=np.float64)  # D
            self.knowledge = {"feature": mean.astype(np.float32)}
