"""FedProc client [Mu et al., 2023].

Paper: "FedProc: Prototypical contrastive federated learning on non-IID data", Xutong Mu, Yulong Shen, Ke Cheng,
Xueli Geng, Jiaxuan Fu, Tao Zhang, Zhiwei Zhang; Future Generation Computer Systems 143 (2023) 93-104,
https://arxiv.org/abs/2109.12273. Reference code: none published by the authors.

Symbols: z features, G global prototypes, tau temperature, alpha_t share of the contrast in round t.

Deviations: (1) without global prototypes (round 1) the loss is cross-entropy alone, since alpha_0 = 1 would
leave nothing; (2) the contrast is on the encoder's features, without a projection; (3) tau is a choice.
"""

from fedshift_clients.base import DomainClient
from fedshift_clients.losses.common import prototype_contrast
from fedshift_clients.methods.common import labelled_prototypes
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.prototypes import contribution
from fedshift_core.arrays import Arrays
from fedshift_core.methods.fedproc import FedProcParams


class FedProcClient(DomainClient[FedProcParams]):
    """(1 - alpha_t) cross-entropy + alpha_t contrast with global prototypes; contributes class prototypes."""

    def start_round(self, server_round: int) -> None:
        """Read the global prototypes and this round's alpha."""
        self._sent = labelled_prototypes(self)
        self._alpha = float(self.scalars["alpha"]) if self._sent else 0.0

    def loss(self, batch: Batch) -> Terms:
        r"""Return both terms of :math:`\alpha_t\mathcal L_{gpc}+(1-\alpha_t)\mathrm{CE}`, weighted."""
        features, logits = self.forward(batch.x)  # B x D, B x C
        ce = self.cross_entropy(logits, batch.y)
        if not self.params.use_gpc or self._sent is None:
            return {"ce": ce}
        contrast = prototype_contrast(features, batch.y, *self._sent, self.params.tau)
        return {"ce": (1 - self._alpha) * ce, "gpc": self._alpha * contrast}

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the class means of the trained encoder's features."""
        return contribution(*self.class_prototypes())
