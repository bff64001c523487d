"""GGEUR client [Ma et al., 2025].

Paper: "Geometric Knowledge-Guided Localized Global Distribution Alignment for Federated Learning", Yanbiao Ma,
Wei Dai, Wenke Huang, Jiayi Chen; CVPR 2025, https://arxiv.org/abs/2503.06457. Reference code:
WeiDai-David/2025CVPR_GGEUR at commit 02624d5 (``prototype_cov_matrix_generate_features.py``, ``FedAvg_GGEUR.py``).

Symbols: f frozen feature of an image, mu and Sigma mean and covariance of a class's f, lambda and xi its eigenvalues
and eigenvectors.

What trains is what comes after the frozen encoder: the projection, if there is one, and the classifier. It learns from
rows: a node's own features and, up to ``samples`` a class, f + sum_m eps_m sqrt(lambda_m) xi_m, eps standard normal,
around its own features and around the prototypes of the other domains.

Deviations: (1) statistics come with the node's first round, and rows are drawn from round 2 on by those that have come
before: a node whose first round is a later one trains on rows at once, drawn without its own covariances; (2) the ten
largest eigenvalues are scaled, as the code's comment says, its line the ten smallest (``scaled``); (3) the node's own
features and each prototype have equal numbers of drawn rows, which the code has on average, also for a class that the
node does not hold; (4) nothing is added to the diagonal of a covariance, which the code needs for Cholesky; (5) loss,
optimiser and weights of nodes are the run's (the code: softmax before cross-entropy, Adam, all nodes alike).

N images, C classes, F width of a frozen feature, R eigenvalues.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.common import autocast, labelled_prototypes
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.projection import projection_of, unprojected
from fedshift_clients.modules.base import AllModules
from fedshift_clients.training.batches import Batch, Terms, cut
from fedshift_clients.training.phases import Phase
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_clients.training.trainer import Rngs
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.methods.ggeur import GGEURParams
from fedshift_core.plural import plural
from fedshift_datasets.base import ImageSet

SMALLEST = 1e-10  # an eigenvalue below so much of the largest is rounding


def covariance(features: Tensor, most: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return mean, eigenvalues and eigenvectors of the covariance of features.

    .. math:: \mu=\frac1n\sum_if_i,\qquad\frac1n\sum_i(f_i-\mu)(f_i-\mu)^\top=\sum_m\lambda_m\xi_m\xi_m^\top

    They come from the singular values of the centred features, so a covariance (F, F) is never made.

    Args:
        features: f, (n, F), at least one.
        most: How many eigenvalues to return at most; 0: all that are not rounding, at most n - 1.

    Returns:
        (F,), (R,) largest first, and (R, F); float64.
    """
    f = features.double()
    mean = f.mean(dim=0)
    _, roots, vectors = torch.linalg.svd((f - mean) / len(f) ** 0.5, full_matrices=False)
    values = roots.square()
    number = int((values > SMALLEST * values[0]).sum())
    number = min(number, len(f) - 1, most or number)
    return mean, values[:number], vectors[:number]


def no_statistics(classes: int) -> dict[str, Tensor]:
    """Return :func:`statistics` of a node that has sent them before: no number."""
    return statistics(torch.zeros(0, 0), torch.zeros(0), classes, least=0, most=0)


def statistics(features: Tensor, y: Tensor, classes: int, least: int, most: int) -> dict[str, Tensor]:
    """Return what a node tells of its features, float32.

    Args:
        features: f, (N, F).
        y: Labels (N,).
        classes: C.
        least: Images of a class whose covariance is sent, at least; of fewer the mean alone.
        most: Eigenvalues of a class, at most; 0: all.

    Returns:
        ``means`` (C, F), ``eigenvalues`` (C, R) and ``eigenvectors`` (C, R, F), 0 where a class has none.
    """
    means = features.new_zeros(classes, features.shape[1])
    eigenvalues = [features.new_zeros(0)] * classes
    eigenvectors = [means[:0]] * classes
    for k in range(classes):
        own = features[y == k]
        if len(own):
            means[k], values, vectors = covariance(own, most)
            if len(own) >= least:
                eigenvalues[k], eigenvectors[k] = values.float(), vectors.float()
    return {
        "means": means,
        "eigenvalues": pad_sequence(eigenvalues, batch_first=True),
        "eigenvectors": pad_sequence(eigenvectors, batch_first=True),
    }


def scaled(values: Tensor, width: int, number: int, scale: float, which: str) -> Tensor:
    """Return eigenvalues of which some are scaled, by factors that fall evenly from ``scale`` to 1.

    Args:
        values: lambda, (R,), largest first; the others of F are 0.
        width: F.
        number: How many are scaled.
        scale: The first factor.
        which: ``largest``, the largest first; ``smallest``, the smallest of all F first.
    """
    factors = torch.linspace(scale, 1.0, number, dtype=values.dtype, device=values.device)
    place = torch.arange(len(values), device=values.device)
    place = place if which == "largest" else width - 1 - place
    inside = place < number
    result = values.clone()
    result[inside] *= factors[place[inside]]
    return result


def drawn_rows(
    own: Tensor, prototypes: Tensor, values: Tensor, vectors: Tensor, samples: int, rng: torch.Generator
) -> Tensor:
    r"""Return the rows of a class: the node's own features, and as many around them and prototypes as are missing.

    .. math:: a+\sum_m\epsilon_m\sqrt{\lambda_m}\,\xi_m,\qquad\epsilon_m\sim\mathcal N(0,1)

    around anchors a. The own features and each prototype have the same number of rows, but for the rounding; of the
    own features each has.

    Args:
        own: The node's features of the class, (n, F).
        prototypes: Of other domains, (M, F).
        values: lambda, scaled, (R,).
        vectors: xi, (R, F).
        samples: How many rows there are in all. Of more own features so many are chosen, and none is drawn.
        rng: CPU generator.

    Returns:
        (samples, F), the own features first; none of a class without anchors.
    """
    number = len(own)
    if number >= samples:
        return own[torch.randperm(number, generator=rng)[:samples].to(own.device)]
    places = anchors(number, len(prototypes), samples - number, rng).to(own.device)
    noise = torch.randn(len(places), len(values), generator=rng).to(own.device)
    around = torch.cat([own, prototypes])[places]
    return torch.cat([own, around + (noise * values.clamp(min=0).sqrt()) @ vectors])


def anchors(own: int, prototypes: int, needed: int, rng: torch.Generator) -> Tensor:
    """Return the places (needed,) among own features and then prototypes around which rows are drawn; none of none."""
    sources = (own > 0) + prototypes
    if not sources:
        return torch.zeros(0, dtype=torch.int64)
    sizes = [needed // sources + (place < needed % sources) for place in range(sources)]
    parts = []
    if own:
        first = sizes.pop(0)
        passes = [torch.randperm(own, generator=rng) for _ in range(-(-first // own))]
        parts.append(torch.cat([*passes, torch.zeros(0, dtype=torch.int64)])[:first])
    parts += [torch.full((size,), own + place) for place, size in enumerate(sizes)]
    return torch.cat(parts)


@dataclass(frozen=True, repr=False)
class Rows(Batch):
    """A batch of frozen features (B, F) in the place of images."""


class GGEURClient(DomainClient[GGEURParams]):
    """Trains what comes after a frozen encoder on features that it draws; contributes statistics of its own."""

    @classmethod
    def check_run(cls, params: GGEURParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse an encoder that trains, and batches by class, which rows have by themselves."""
        if not params.samples:
            return
        if model.freeze != "encoder":
            raise ConfigError(
                f"method ggeur draws frozen features: it needs model.freeze=encoder, found {model.freeze}"
            )
        if train.sampler == "balanced":
            raise ConfigError("train.sampler=balanced: ggeur trains on as many rows of each class; allowed is shuffled")

    @classmethod
    def kept_names(
        cls, model: SplitModel, config: ModelConfig, params: GGEURParams, modules: AllModules
    ) -> frozenset[str]:
        """Refuse modules, which have no images of the rows."""
        if params.samples and modules:
            raise ConfigError("method ggeur trains on features, of which modules have no images: leave out modules")
        return super().kept_names(model, config, params, modules)

    def phases(self, server_round: int) -> list[Phase]:
        """Return the local epochs: over rows from the second round on, when there are statistics."""
        drawn = self.params.samples * self.model.num_classes if server_round > 1 else 0
        return [replace(phase, samples=drawn or None) for phase in super().phases(server_round)]

    def start_round(self, server_round: int) -> None:
        """Take the statistics of the node's features, if the server lacks them, and draw rows, if it can."""
        self._statistics: Arrays = {}
        self._rows: tuple[Tensor, Tensor] | None = None
        lacking, values = bool(self.scalars.get("statistics", 0)), self.tensor("eigenvalues")
        if not self.params.samples or not (lacking or values is not None):
            return
        features, y = self._frozen()
        if lacking:
            p = self.params
            tensors = statistics(features, y, self.model.num_classes, least=p.least_images, most=p.pca)
            self._statistics = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        if values is not None:
            self._rows = self._drawn(features, y, values, server_round if self.params.redraw else 0)

    def training_batches(self, images: ImageSet, size: int, views: int, rngs: Rngs, epoch: int = 0) -> Iterator[Batch]:
        """Yield the drawn rows once, in random order; the node's images before there are any."""
        if self._rows is None:
            yield from super().training_batches(images, size, views, rngs, epoch)
            return
        features, labels = self._rows
        for place in cut(torch.randperm(len(labels), generator=rngs[0]).to(labels.device), size):
            yield Rows(features[place], labels[place], epoch)

    def loss(self, batch: Batch) -> Terms:
        """Return the cross-entropy of a batch of rows, or of images."""
        if not isinstance(batch, Rows):
            return super().loss(batch)
        projection = projection_of(self.model.encoder)
        with autocast(self):
            logits = self.model.classifier(batch.x if projection is None else projection(batch.x))
        return {"ce": self.cross_entropy(logits.float(), batch.y)}

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute numbers of images and, if the server lacks them, mean and covariance of each class."""
        if not self.params.samples:
            return {}
        number = self.model.num_classes
        sent = self._statistics or {name: tensor.numpy() for name, tensor in no_statistics(number).items()}
        return {"counts": np.bincount(self.train_set.y, minlength=number)} | sent

    def _frozen(self) -> tuple[Tensor, Tensor]:
        """Return the frozen features (N, F) of all training images, not augmented, and their labels (N,)."""
        encoder = self.model.encoder
        projected = projection_of(encoder) is not None
        return self.encoded(self.train_set, lambda x: unprojected(encoder, x) if projected else encoder(x))

    def _drawn(self, features: Tensor, y: Tensor, values: Tensor, server_round: int) -> tuple[Tensor, Tensor]:
        """Return rows (N', F) and their labels (N',).

        Raises:
            FedShiftError: If what the server sent does not fit together, or to the node's features.
        """
        p, number, width = self.params, self.model.num_classes, features.shape[1]
        vectors, known = self.tensor("eigenvectors"), labelled_prototypes(self)
        if (
            vectors is None
            or known is None
            or values.ndim != 2
            or vectors.shape != (number, *values.shape[1:], width)
            or known[0].shape != (len(known[1]), width)
        ):
            raise FedShiftError(
                f"the server's covariances or prototypes are not of {plural(number, 'class', 'classes')}, "
                f"{plural(width, 'number')}"
            )
        rng = self.torch_rng("ggeur", server_round)
        rows, (prototypes, labels) = list[Tensor](), known
        for k in range(number):
            strengths = scaled(values[k], width, p.number_scaled, p.scale, p.scaled)
            rows.append(drawn_rows(features[y == k], prototypes[labels == k], strengths, vectors[k], p.samples, rng))
        sizes = torch.tensor([len(made) for made in rows], device=y.device)
        return torch.cat(rows), torch.arange(number, device=y.device).repeat_interleave(sizes)
