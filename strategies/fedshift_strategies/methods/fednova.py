"""FedNova strategy [Wang et al., 2020].

A node that takes more steps moves further. Each change is divided by the steps behind it before the changes are
averaged, so that the average leans towards no node.

Paper: "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", Jianyu Wang, Qinghua Liu,
Hao Liang, Gauri Joshi, H. Vincent Poor, NeurIPS 2020; https://arxiv.org/abs/2007.07481 (equation 7, section 4.2).
Reference code: JYWa/FedNova, commit 47b4e09.

Symbols: w the weights of a round, w_i those of node i after local training, p_i its share of the round's images, tau_i
its steps, eta the learning rate, rho momentum, mu weight of the proximal term, a_i by how much each of its gradients
is in w - w_i, in units of eta, |a_i| their sum.

    d_i = (w - w_i) / |a_i|,   tau_eff = sum_i p_i |a_i|,   w <- w - tau_eff sum_i p_i d_i

    |a_i| = tau_i                                                    of plain SGD,
            (tau_i - rho (1 - rho^tau_i) / (1 - rho)) / (1 - rho)    with momentum,
            (1 - (1 - eta mu)^tau_i) / (eta mu)                      with the proximal term

The last line is the average of w - s_i (w - w_i) with s_i = tau_eff / |a_i|. The server works s_i out of the numbers of
images that nodes announced, and a node scales its change by it: what arrives is averaged as FedAvg's is.

Deviations: (1) tau_eff is over the nodes that are sent the round, also where a reply is lost; (2) it weighs nodes by
images, or alike with ``aggregation.weights=equal``, also where the average goes by another rule; (3) weight decay is a
part of the gradient, as in the code; (4) with momentum the proximal term is in the momentum, in the code it is not, and
the code's tau_eff with that term is sum_i p_i tau_i; (5) buffers are averaged.

Compared with the code on the same batches of three nodes that take 2, 6 and 8 steps, with tau_eff as above: after three
rounds the largest difference of a weight is 6.0e-8 with SGD and with momentum 0.9 (moved by up to 0.37); with mu 0.3 it
is 3.0e-8 after one round and 6.8e-5 after three.
"""

from fedshift_core.methods.fedprox import FedProxParams
from fedshift_strategies.method import ANY_NUMBER, Ask, DomainStrategy, Node, Scalars, shares


class FedNovaStrategy(DomainStrategy[FedProxParams]):
    """Tells each node by how much to scale its change, so that nodes with many steps do not pull further."""

    tells = {"scale": ANY_NUMBER}

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Tell a node that trains its s_i."""
        if not ask.trains:
            return {}
        asked = self._training.nodes
        equal = self.federation.config.aggregation.weights == "equal"
        p = shares([1 if equal else self.roster.weighs(other) for other in asked])
        tau_eff = sum(share * self._length(other) for share, other in zip(p, asked, strict=True))
        return {"scale": tau_eff / self._length(node)}

    def _length(self, node: Node) -> float:
        """Return |a_i| of a node in this round."""
        train = self.federation.config.train
        rate = train.lr * train.lr_factor(self.server_round, self.federation.rounds)
        return length(steps(node.num_examples, train.batch_size, train.epochs), train.momentum, rate * self.params.mu)


def steps(images: int, batch_size: int, epochs: int) -> int:
    """Return tau_i, the steps of local training; a last batch of one image joins the one before."""
    batches = -(-images // batch_size)
    return epochs * (batches - (batches > 1 and images % batch_size == 1))


def length(tau: int, rho: float, eta_mu: float) -> float:
    """Return |a_i|, which is how far tau steps with gradients of 1 go, in units of eta.

    Args:
        tau: Number of steps.
        rho: Momentum, 0 for none.
        eta_mu: Learning rate times the weight of the proximal term, 0 for none.
    """
    speed = gone = 0.0
    for _ in range(tau):
        speed = rho * speed + 1 - eta_mu * gone
        gone += speed
    return gone
