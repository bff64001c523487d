"""FedPAC client [Xu et al., 2023].

Paper: "Personalized Federated Learning with Feature Alignment and Classifier Collaboration", Jian Xu, Xinyi Tong,
Shao-Lun Huang; ICLR 2023, https://arxiv.org/abs/2306.11867. Reference code: JianXu95/FedPAC at commit 5770f4f
(``methods/fedpac.py``).

Symbols: z features, p_n^k prototype of node n and class k, G global prototypes, h_n^k mean feature of a class times its
share, V_n its variance, lambda the weight of the alignment.

Deviations: (1) p_n, h_n and V_n are taken in evaluation mode of images that are not augmented (the code: of batches as
they come, in the mode the model is in); (2) momentum and weight decay are the experiment's, for all methods the same.

B batch, C classes, D feature width.
"""

import torch
from torch import Tensor

from fedshift_clients.base import Phase
from fedshift_clients.methods.common import names_of, put, sent
from fedshift_clients.methods.heads import HeadFirst
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.prototypes import contribution, sent_prototypes
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.arrays import Arrays
from fedshift_core.methods.fedpac import FedPACParams
from fedshift_core.wire.names import CLASSIFIER, HEAD


def alignment(features: Tensor, y: Tensor, targets: Tensor) -> Tensor:
    r"""Pull each feature to the prototype of its class: :math:`\frac1{BD}\sum_i\|z_i-G^{y_i}\|_2^2`.

    Args:
        features: z, (B, D).
        y: Labels (B,).
        targets: G, (C, D), without gradient.

    Returns:
        A scalar.
    """
    return (features.float() - targets.float()[y]).square().mean()


def statistics(means: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return what a node tells of its features, of which the server makes the weights of heads.

    .. math:: h^k=\pi^kp^k,\qquad V=\frac1{|D|}\sum_k\Big(\pi^k\,\mathbb E_k\|z\|_2^2-\|h^k\|_2^2\Big)

    with :math:`\pi^k` the share of class k among the node's images.

    Args:
        means: p, (C, D), zero for a class without images.
        squares: Mean squared norm of the features of each class, (C,).
        counts: Images of each class, (C,); at least one of some class.

    Returns:
        h, (C, D), and V, (1,); float32, computed in float64.
    """
    number = counts.sum()
    share = counts.double() / number
    h = share[:, None] * means.double()
    v = ((share * squares.double()).sum() - h.square().sum()) / number
    return h.float(), torch.clamp(v, min=0).float()[None]  # below 0 by rounding only


class FedPACClient(HeadFirst[FedPACParams]):
    """Trains the head, then the body on cross-entropy + lambda ||z - G^y||^2; contributes statistics of features."""

    @classmethod
    def trains_encoder_alone(cls, params: FedPACParams) -> bool:
        """Return True: the body trains after the head."""
        return True

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: FedPACParams) -> frozenset[str]:
        """Keep the head on the node where heads are not combined."""
        return super().private(model, config, params) | names_of(model, () if params.combine_heads else CLASSIFIER)

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: FedPACParams) -> bool:
        """Each node has a head of its own."""
        return True

    @classmethod
    def scores_as_sent(cls, params: FedPACParams) -> bool:
        """The weights come with the average head, and a node is scored with its own."""
        return not params.combine_heads

    def received(self) -> None:
        """Put the node's own head into the model; until it has been given one, the average that came serves."""
        put(self.model.classifier, sent(self, HEAD))

    def start_round(self, server_round: int) -> None:
        """Take the statistics of the received body's features, and of their squares; read the global prototypes."""

        def encode(x: Tensor) -> Tensor:
            z = self.forward(x)[0]
            return torch.cat([z, z.square().sum(dim=1, keepdim=True)], dim=1)

        averages, counts = self.class_means_of(encode)  # C x (D + 1), C
        means, squares = averages[:, :-1], averages[:, -1]
        self._statistics: Arrays = {}
        if self.params.combine_heads:
            h, v = statistics(means, squares, counts)
            self._statistics = {"class-features": h.cpu().numpy(), "variance": v.cpu().numpy()}
        self._targets: Tensor | None = None
        prototypes = sent_prototypes(self)
        if self.params.lambda_align > 0 and prototypes is not None:
            self._targets = torch.where(prototypes[1][:, None], prototypes[0], means)

    def phases(self, server_round: int) -> list[Phase]:
        """Return the head's phase and the body's."""
        p, head = self.params, (CLASSIFIER,)
        return [
            Phase(p.head_epochs, trains=head, lr=p.head_lr),
            Phase(self.setup.train.epochs, freezes=head, fresh=True),
        ]

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return the alignment of the body, weighted; none in round 1 and while the head trains."""
        if self._targets is None or self.phase.trains is not None:
            return {}
        return {"align": self.params.lambda_align * alignment(features, batch.y, self._targets)}

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute prototypes of the trained body, and the statistics of the received one."""
        aligned = contribution(*self.class_prototypes()) if self.params.lambda_align > 0 else {}
        return aligned | self._statistics
