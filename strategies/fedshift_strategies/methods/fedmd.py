"""FedMD strategy [Li & Wang, 2019].

Paper: "FedMD: Heterogenous Federated Learning via Model Distillation", Daliang Li, Junpu Wang, NeurIPS 2019 workshop;
https://arxiv.org/abs/1910.03581 (algorithm 1). Reference code: diogenes0319/FedMD_clean at commit ab7a07b
(``FedMD.py``).

Symbols: f_n(x) the class scores (logits) of node n for a public image, N_t the nodes of round t.

    f~(x) = 1/|N_t| sum_{n in N_t} f_n(x)

Deviations: as in ``fedshift_clients.methods.fedmd``; a node that is not in a round contributes no scores to the next
one's mean.
"""

import numpy as np

from fedshift_core.limits import LARGEST_COUNT
from fedshift_core.methods.fedmd import FedMDParams
from fedshift_strategies.method import ANY_COUNT, Ask, Declaration, DomainStrategy, Node, Range, Scalars, Update


class FedMDStrategy(DomainStrategy[FedMDParams]):
    """Averages the nodes' class scores on the public images of a round.

    Knowledge: ``scores`` (S, C) and ``window`` (2,), the first of these images and one past the last of them.
    """

    sends = ("scores", "window")
    tells = {"start": ANY_COUNT, "stop": Range(1, LARGEST_COUNT)}
    contributes = {"scores": ("S", "C")}
    behind = {"scores": "model"}  # of public images
    summed = {"scores": "each"}
    scores_with_knowledge = False

    def expected(self) -> Declaration:
        """Return scores of as many images as the coming round takes; nothing if nobody digests."""
        if not self.params.digest_epochs:
            return {}
        start, stop = self._window(self.server_round + 1)
        return {"scores": (stop - start, "C")} if stop else self.contributes

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Average the scores, each node the same."""
        if not self.params.digest_epochs:
            return
        mean = np.stack([update.knowledge["scores"] for update in updates]).mean(axis=0, dtype=np.float64)  # S x C
        window = np.array(self._window(self.server_round + 1), dtype=np.int64)
        self.knowledge = {"scores": mean.astype(np.float32), "window": window}

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Tell a node of which public images its scores are wanted."""
        if not ask.trains or not self.params.digest_epochs:
            return {}
        start, stop = self._window(ask.server_round + 1)
        return {"start": start, "stop": stop}

    def _window(self, server_round: int) -> tuple[int, int]:
        nodes = self.roster.nodes
        return window(nodes[0].num_public if nodes else 0, self.params.public_images, server_round)


def window(number: int, most: int, server_round: int) -> tuple[int, int]:
    """Return which public images a round takes: the next part of all of them, in turn.

    Args:
        number: Images of the public set.
        most: How many a round takes at most.
        server_round: The round, from 1.

    Returns:
        The first and one past the last; parts differ by one image at most.
    """
    parts = -(-number // most) or 1
    base, more = divmod(number, parts)
    place = (server_round - 1) % parts
    start = place * base + min(place, more)
    return start, start + base + (place < more)
