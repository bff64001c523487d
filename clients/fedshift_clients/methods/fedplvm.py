"""FedPLVM client [Wang et al., 2024].

Paper: "Taming Cross-Domain Representation Variance in Federated Prototype Learning with Heterogeneous Data Domains",
Lei Wang, Jieming Bian, Letian Zhang, Chen Chen, Jie Xu; NeurIPS 2024, https://arxiv.org/abs/2403.09048.
Reference code: TriStonesWang/FedPLVM at commit 867b5f1 (``utils/update.py``, ``utils/util.py``).

Symbols: z features, v_n^kj prototype j of class k of this node, P^k global cluster prototypes of class k, tau
temperature, alpha sparsity, lambda the weight of both terms.

Deviations: (1) cosines below 1e-6 count as 1e-6 (the code's root of a negative cosine is no number); (2) samples whose
class has no prototype are left out of both means; (3) a last batch that is not full is trained on, and its images are
in the prototypes; (4) of a class with more images than ``most_images`` a sample is clustered.

B batch, C classes, D feature width, P prototypes.
Prototypes are constants; features carry gradients.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.losses.common import class_means, cosines, mean_share, unit
from fedshift_clients.methods.common import labelled_prototypes
from fedshift_clients.training.batches import Batch, Terms
from fedshift_core.arrays import Arrays
from fedshift_core.clustering import MOST_CLUSTERS, finch_groups
from fedshift_core.methods.fedplvm import FedPLVMParams
from fedshift_core.seeding import generator

#: Cosines below it count as it: the slope of a root at 0 has no bound, and a negative number has none.
LEAST_COSINE = 1e-6


def sparse_similarity(features: Tensor, prototypes: Tensor, alpha: float) -> Tensor:
    r"""Return :math:`s_\alpha(z,v)=\cos(z,v)^\alpha`, (B, P); from 0 to 1, and the steeper the smaller the cosine.

    Args:
        features: z, (B, D).
        prototypes: v, (P, D).
        alpha: Above 0 and at most 1; 1 is the cosine itself, where it is not negative.
    """
    return cosines(features, prototypes).clamp(min=LEAST_COSINE) ** alpha


def sparse_contrast(
    features: Tensor, y: Tensor, prototypes: Tensor, labels: Tensor, tau: float, alpha: float
) -> Tensor:
    r"""Contrast features with all cluster prototypes (alpha-sparsity, L_con).

    .. math:: -\frac1{|B'|}\sum_{i\in B'}\log
        \frac{\sum_{v\in P^{y_i}}e^{s_\alpha(z_i,v)/\tau}}{\sum_ve^{s_\alpha(z_i,v)/\tau}},
        \quad B'=\{i:\,P^{y_i}\neq\emptyset\}

    Args:
        features: z, (B, D).
        y: Labels (B,).
        prototypes: v, (P, D).
        labels: The class of each, (P,).
        tau: Temperature, above 0.
        alpha: See :func:`sparse_similarity`.

    Returns:
        A scalar; 0 if no sample of the batch has a prototype.
    """
    return mean_share(sparse_similarity(features, prototypes, alpha) / tau, y, labels)


def correction(features: Tensor, y: Tensor, means: Tensor, present: Tensor) -> Tensor:
    r"""Turn each feature towards the mean of its class's clusters, which the root would not (L_cor).

    .. math:: \frac2{|B'|}\sum_{i\in B'}(1-\cos(z_i,\bar P^{y_i}))^2

    Args:
        features: z, (B, D).
        y: Labels (B,).
        means: The mean of each class's clusters, (C, D).
        present: Classes that have one, (C,), bool.

    Returns:
        A scalar; 0 if no sample of the batch has a prototype.
    """
    has = present[y]  # B
    cosine = (unit(features) * unit(means)[y]).sum(dim=1)
    return 2 * ((1 - cosine).square() * has).sum() / has.sum().clamp(min=1)


class FedPLVMClient(DomainClient[FedPLVMParams]):
    """Cross-entropy + lambda (L_con + L_cor); contributes several prototypes of each class."""

    def start_round(self, server_round: int) -> None:
        """Read the global cluster prototypes and average them by class."""
        self._sent = labelled_prototypes(self)  # P x D, P
        if self._sent is not None:
            self._means, counts = class_means(*self._sent, self.model.num_classes)
            self._present = counts > 0

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return both terms, weighted; none without prototypes (round 1)."""
        p = self.params
        terms: Terms = {}
        if p.lambda_proto == 0 or self._sent is None:
            return terms
        if p.use_contrast:
            terms["sparse"] = p.lambda_proto * sparse_contrast(features, batch.y, *self._sent, p.tau, p.alpha)
        if p.use_correction:
            terms["correct"] = p.lambda_proto * correction(features, batch.y, self._means, self._present)
        return terms

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the means of the clusters of each class's features, of the trained model in evaluation mode."""
        if self.params.lambda_proto == 0:
            return {}
        z, y = self.encoded(self.train_set, self.encode)[0].cpu().numpy(), self.train_set.y
        rng = generator(self.setup.seed, "fedplvm-images", self.setup.index, server_round)
        means, labels, counts = list[NDArray[np.float32]](), list[int](), list[int]()
        for k in np.unique(y).tolist():
            places = np.flatnonzero(y == k)
            clusters = [np.arange(len(places))]
            if self.params.cluster_locally:
                if len(places) > self.params.most_images:
                    places = np.sort(rng.choice(places, self.params.most_images, replace=False))
                clusters = finch_groups(z[places], early_exit=False)
            for cluster in sorted(clusters, key=len)[-MOST_CLUSTERS:] if len(clusters) > MOST_CLUSTERS else clusters:
                means.append(z[places[cluster]].mean(axis=0, dtype=np.float64).astype(np.float32))
                labels.append(k)
                counts.append(len(cluster))
        return {"prototypes": np.stack(means), "labels": np.array(labels), "counts": np.array(counts)}
