"""Client of the heads that are solved of sums of features: Fed3R [Fani et al., 2024], FedCGS [Guan et al., 2025].

Symbols: f frozen feature of an image. A node tells, once, sum f f^T over its training images, the sums of f by class,
and numbers of images: as whole numbers (``fedshift_core.methods.feature_sums``). Nothing trains.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.base import DomainClient, Scores
from fedshift_clients.methods.common import put
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.phases import Phase
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.methods.feature_sums import COUNTS, CROSS, GRAM, RIDGES, STEP, Fed3RParams, packed, to_whole
from fedshift_core.params import P
from fedshift_datasets.base import ImageSet


def sums(features: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return sum f f^T (F, F) and the sums of f by class (C, F), in whole numbers of UNIT, float64.

    Args:
        features: f, (N, F).
        y: Labels (N,).
        classes: C.
    """
    f = (features.double() * (1 / STEP)).round_()
    by_class = torch.zeros(classes, f.shape[1], dtype=f.dtype, device=f.device).index_add_(0, y, f)
    # NumPy computes one half of a symmetric product; the numbers are whole, so that both have the same bits.
    gram = f.T @ f if f.is_cuda else torch.from_numpy(f.numpy().T @ f.numpy())
    return gram, by_class / STEP


def own_head(features: Tensor, y: Tensor, weight: Tensor, bias: Tensor, rho: float) -> tuple[Tensor, Tensor]:
    r"""Return the head of a node's own: the ridge regression of its images toward a head.

    .. math:: \arg\min_W\|\Phi W-Y\|^2+\rho\,\frac{\mathrm{tr}\,F^\top F}{F}\,\|W-W_0\|^2
        =W_0+\Big(\Phi^\top\Phi+\rho\,\frac{\mathrm{tr}\,F^\top F}{F}I\Big)^{-1}\Phi^\top(Y-\Phi W_0)

    with :math:`\Phi=(F,1)`, whose last column is the bias's.

    Args:
        features: F, (N, F).
        y: Labels (N,).
        weight: Of the head, (C, F).
        bias: Of the head, (C,).
        rho: How much the head counts.
    """
    f = features.double()
    phi = torch.cat([f, torch.ones_like(f[:, :1])], dim=1)
    shared = torch.cat([weight, bias[:, None]], dim=1).double().T
    missing = torch.nn.functional.one_hot(y, len(weight)).double() - phi @ shared
    scale = rho * max(float(f.square().sum()) / f.shape[1], STEP**2)  # features may be 0, all of them
    gram = phi.T @ phi
    own = shared + torch.linalg.solve(
        gram + scale * torch.eye(len(gram), dtype=f.dtype, device=f.device), phi.T @ missing
    )
    return own[:-1].T.to(weight.dtype), own[-1].to(bias.dtype)


class FeatureSumsClient(DomainClient[P]):
    """Tells sums of its features once, and trains nothing."""

    @classmethod
    def check_run(cls, params: P, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse an encoder that trains, and a head that is no linear one."""
        if model.freeze != "encoder" or model.head != "linear":
            raise ConfigError(
                "the head is solved of frozen features: it needs model.freeze=encoder and model.head=linear, found "
                f"{model.freeze} and {model.head}"
            )

    def phases(self, server_round: int) -> Sequence[Phase]:
        """Return no part: nothing trains."""
        return []

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the sums if the server lacks them; the gram matrix of classes that a secure sum has rows of."""
        y, number = self.train_set.y, self.model.num_classes
        if not self.scalars.get("sums", 0):
            counts = np.bincount(y, minlength=number)
            return {COUNTS: counts, GRAM: np.zeros(0, np.int64), CROSS: np.zeros((number, 0), np.int64)}
        sums = self.sums_of(np.ones(len(y), bool))
        if self.summed is None or self.summed[y].all():
            return sums
        return sums | {GRAM: self.sums_of(self.summed[y])[GRAM]}

    def sums_of(self, chosen: NDArray[np.bool_]) -> Arrays:
        """Return counts and sums of some of the training images, (N,), in whole numbers.

        Features of all are computed, in the batches of a round, so that those of an image are always the same bits.
        """
        features, y = self.encoded(self.train_set, self.model.encoder)
        mask, number = torch.from_numpy(chosen).to(y.device), self.model.num_classes
        gram, cross = (each.cpu().numpy() for each in sums(features[mask], y[mask], number))
        counts = torch.bincount(y[mask], minlength=number).cpu().numpy()
        return {COUNTS: counts, GRAM: to_whole(packed(gram), GRAM), CROSS: to_whole(cross, CROSS)}


class Fed3RClient(FeatureSumsClient[Fed3RParams]):
    """Tells sums, scores the heads of the grid on its validation images, and has a head of its own at scores."""

    _solved: tuple[list[Tensor], dict[str, Tensor]] | None = None  # a shared head, and the own one toward it

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: Fed3RParams) -> bool:
        """Tell whether each node has a head of its own."""
        return params.personal is not None or super().personal(model, config, params)

    @classmethod
    def scores_as_sent(cls, params: Fed3RParams) -> bool:
        """Not where the head is solved anew for a score."""
        return params.personal is None

    def score_test(self, test: ImageSet) -> Scores:
        """Score with the node's own head, if the run says so; put the shared one back."""
        if self.params.personal is None or not len(self.train_set):
            return super().score_test(test)
        with self.kept_weights():
            put(self.model.classifier, self._own_head(self.params.personal))
            return super().score_test(test)

    def _own_head(self, rho: float) -> dict[str, Tensor]:
        """Return the node's own head; it is solved once for all domains that are scored under a shared one."""
        shared = self.model.classifier.weight.detach(), self.model.classifier.bias.detach()
        if not self._solved or not all(map(torch.equal, self._solved[0], shared)):
            weight, bias = own_head(*self.encoded(self.train_set, self.model.encoder), *shared, rho)
            self._solved = [each.clone() for each in shared], {"weight": weight, "bias": bias}
        return self._solved[1]

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the sums, and how many validation images each head of the grid classifies rightly."""
        sent = super().finish_round(server_round)
        if self.params.ridge != "validation":
            return sent
        right = np.zeros(len(RIDGES), np.int64)
        heads, biases, images = self.tensor("heads"), self.tensor("biases"), self.own_sets.get("validation")
        if images is not None and len(images) < self.setup.least_images:
            images = None  # as it announces
        if heads is not None and biases is not None and images is not None:
            features, y = self.encoded(images, self.model.encoder)
            logits = torch.einsum("nf,lcf->lnc", features, heads) + biases[:, None]
            right = (logits.argmax(dim=2) == y).sum(dim=1).cpu().numpy()
        return sent | {"right": right}
