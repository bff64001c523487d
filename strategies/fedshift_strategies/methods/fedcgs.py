r"""FedCGS strategy [Guan et al., 2025].

Paper: "Capture Global Feature Statistics for One-Shot Federated Learning", Zenghao Guan, Yucan Zhou, Xiaoyan Gu;
AAAI 2025, https://arxiv.org/abs/2503.06962.

Symbols: f frozen feature of an image, mu_k mean of those of class k over all nodes, S their covariance around the
means of their classes, pi_k share of class k.

    W_k = S^-1 mu_k,    b_k = -1/2 mu_k^T S^-1 mu_k + log pi_k

Nodes tell sum f f^T, the sums of f by class, and numbers of images, once; one round gives the head.

Deviations: (1) S is divided by all images, not by images minus classes: one factor for all logits but log pi; (2)
``shrinkage`` of the mean variance is added to S's diagonal, which has less than full rank where images are few; (3) the
paper's personal models, trained toward the global statistics, are not part of it.
"""

from fedshift_core.arrays import Floats
from fedshift_core.methods.feature_sums import FedCGSParams
from fedshift_strategies.methods.feature_sums import FeatureSumsStrategy, Head, gaussian_head


class FedCGSStrategy(FeatureSumsStrategy[FedCGSParams]):
    """Solves the Gaussian head of all nodes' sums."""

    def solve(self, counts: Floats, gram: Floats, cross: Floats) -> Head:
        """Return the head of Gaussian classes with one covariance."""
        return gaussian_head(counts, gram, cross, self.params.shrinkage)
