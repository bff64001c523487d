"""FedDyn strategy [Acar et al., 2021].

Paper: "Federated Learning Based on Dynamic Regularization", Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro,
Matthew Mattina, Paul N. Whatmough, Venkatesh Saligrama, ICLR 2021; https://arxiv.org/abs/2111.04263 (algorithm 1).
Reference code: alpemreacar/FedDyn, commit 48a19fa.

Symbols: w_n weights of node n after local training, w^t the global ones of round t, S the nodes of the round, m the
number of all nodes, h the server's state.

    h <- h - alpha/m sum_{n in S} (w_n - w^t),  w^{t+1} = 1/|S| sum_{n in S} w_n - h / alpha

What is scored is w^{t+1}, the code's cloud model, or with ``scores=mean`` the mean of the w_n, which the code reports.
What is kept is d = -h / alpha, so alpha cancels: d <- d + 1/m sum (w_n - w^t), w^{t+1} = mean + d.

Deviations: (1) buffers and arrays of integers are averaged and have no h (the paper's networks have none);
(2) ``aggregation.weights`` may weigh the mean, d is always of equal weights; (3) a node whose reply was not used has
moved its own state all the same: d lacks that change.
"""

import numpy as np
from flwr.app import ArrayRecord

from fedshift_core.methods.feddyn import FedDynParams
from fedshift_strategies.method import (
    ANY_NUMBER,
    Arrays,
    Ask,
    DomainStrategy,
    Node,
    Scalars,
    Update,
    average,
    decode,
    encode,
)

DRIFT = "drift/"  # prefix in the server's state of d, before the name of a weight
MEAN = "mean/"  # the same of the mean of a round's w_n, where that is scored


class FedDynStrategy(DomainStrategy[FedDynParams]):
    """The plain mean of the nodes' weights, moved on by d, how far nodes have moved in all rounds."""

    sends = ()
    tells = {"alpha": ANY_NUMBER}
    of_sums = ("merge",)

    @classmethod
    def weighs_alike(cls, params: FedDynParams) -> bool:
        """Weigh each node of the round the same."""
        return params.alpha > 0

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Tell a node its own alpha, if that goes by its images."""
        if not self.params.alpha_by_images or not ask.trains:
            return {}
        sizes = [self.roster.weighs(other) for other in self.roster.nodes]
        return {"alpha": self.params.alpha * sum(sizes) / len(sizes) / self.roster.weighs(node)}

    def scored_weights(self) -> ArrayRecord:
        """Return the next round's weights, or with ``scores=mean`` the mean of this round's."""
        known = decode(self.sent)
        means = {name: self.state[MEAN + name] for name in known if MEAN + name in self.state}
        return encode({name: means.get(name, array) for name, array in known.items()}) if means else self.sent

    def merge(self, updates: list[Update], weights: list[float]) -> ArrayRecord:
        """Return the mean moved on by d, of which this round's changes are a part already."""
        if not self.params.alpha:
            return super().merge(updates, weights)
        sent = decode(self.sent)
        trained = self.federation.trained(sent)
        changes = mean_change([update.arrays() for update in updates], sent, trained, len(self.roster.nodes))
        changes = {name: change * updates[0].stands_for for name, change in changes.items()}
        self.state = {
            DRIFT + name: (self.state.get(DRIFT + name, 0) + change).astype(sent[name].dtype)
            for name, change in changes.items()
        }
        merged = decode(average(updates, weights))
        if self.params.scores == "mean":
            self.state |= {MEAN + name: merged[name] for name in changes}
        return encode({name: a + self.state[DRIFT + name] if name in changes else a for name, a in merged.items()})


def mean_change(received: list[Arrays], sent: Arrays, names: tuple[str, ...], nodes: int) -> Arrays:
    r"""Return :math:`\frac1m\sum_{n\in S}(w_n-w^t)` by name, in float64.

    Args:
        received: w_n of each node of the round, by name.
        sent: w^t by name.
        names: Of the parameters.
        nodes: m, all nodes of the federation.
    """
    means: Arrays = {}
    for name in names:
        total = np.zeros(sent[name].shape)
        for arrays in received:
            total += arrays[name].astype(np.float64) - sent[name]
        means[name] = total / nodes
    return means
