"""FedDAP client [Le et al., 2026].

Paper: "FedDAP: Domain-Aware Prototype Learning for Federated Learning under Domain Shift", Huy Q. Le, Loc X. Nguyen, Yu
Qiao, Seong Tae Kim, Eui-Nam Huh, Choong Seon Hong; CVPR 2026, https://arxiv.org/abs/2604.06795. Reference code:
quanghuy6997/FedDAP at commit 988211e (``models/feddap.py``), which does not run as it is.

Symbols: z features, d the node's domain, P_d^k prototype of class k and domain d, tau temperature.

    L = CE + lambda1 mean_i (1 - cos(z_i, P_d^y)) + lambda2 mean_i -log(sum_{e != d} exp(cos(z_i, P_e^y) / tau)
        / sum_{e != d, k} exp(cos(z_i, P_e^k) / tau))

Both means are over all images of the batch; an image whose class has no such prototype counts 0 in them, as in the
code.

Deviations: (1) prototypes are taken after training in evaluation mode (``proto_source``; the code gathers them in the
last local epoch); (2) they are sent without noise (``dp``; the code adds some, by a function that is defined nowhere);
(3) a node that holds several domains counts as of its home domain (the code has one domain a node).

B batch, C classes, D feature width.
"""

import numpy as np
from torch import Tensor

from fedshift_clients.losses.common import contrast_of_each, unit
from fedshift_clients.methods.common import labelled_prototypes
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.prototypes import PrototypeClient, by_class
from fedshift_core.arrays import Arrays
from fedshift_core.methods.feddap import FedDAPParams


def turned_of_each(features: Tensor, y: Tensor, own: Tensor, present: Tensor) -> Tensor:
    r"""Return how far each feature is turned from its class's prototype of the node's domain (FedDAP, DPA).

    .. math:: 1-\cos(z_i,P_d^{y_i})

    Args:
        features: z, (B, D).
        y: Labels (B,).
        own: P_d, (C, D).
        present: Classes that have one, (C,), bool.

    Returns:
        (B,), float32; 0 of a sample whose class has none.
    """
    cosine = (unit(features) * unit(own)[y]).sum(dim=1)
    return (1 - cosine).masked_fill(~present[y], 0.0)


class FedDAPClient(PrototypeClient[FedDAPParams]):
    """Cross-entropy + lambda1 DPA + lambda2 CPCL; contributes class prototypes."""

    def start_round(self, server_round: int) -> None:
        """Part the prototypes into those of the node's domain and those of the others."""
        self._own: tuple[Tensor, Tensor] | None = None  # C x D, C
        self._others: tuple[Tensor, Tensor] | None = None  # P x D, P
        sent, domains = labelled_prototypes(self), self.tensor("domains")
        if sent is None or domains is None:
            return
        prototypes, labels = sent
        here = domains == int(self.scalars["domain"])
        self._own = by_class(prototypes[here], labels[here], self.model.num_classes)
        if len(labels[~here]):
            self._others = prototypes[~here], labels[~here]

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute class prototypes p, with ``dp`` p + q N(0, s^2) / n of each class.

        n are its images: the noise is on their sum, as in the code. It is drawn from the system's entropy
        (``repeatable_noise``). Nothing bounds a single image's share in p, so that no differential-privacy guarantee
        can be accounted for.
        """
        sent, p = super().finish_round(server_round), self.params
        if p.dp != "add":
            return sent
        mean, counts = sent["prototypes"], sent["counts"][:, None]  # C x D, C x 1
        noise = self.protecting_rng("feddap-dp", server_round).normal(0.0, p.dp_scale, mean.shape)
        noisy = mean + p.dp_q * noise / np.maximum(counts, 1)
        return sent | {"prototypes": np.where(counts > 0, noisy, 0.0).astype(np.float32)}

    def own_terms_of_each(self, features: Tensor, batch: Batch) -> Terms:
        """Return DPA and CPCL of each image, weighted, (B,)."""
        p = self.params
        terms = {}
        if p.lambda1 > 0 and self._own is not None:
            terms["dpa"] = p.lambda1 * turned_of_each(features, batch.y, *self._own)
        if p.lambda2 > 0 and self._others is not None:
            terms["cpcl"] = p.lambda2 * contrast_of_each(features, batch.y, *self._others, p.tau)
        return terms
