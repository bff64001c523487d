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
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.losses import ggeur as geometry
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.projection import projection_of, unprojected
from fedshift_clients.modules.base import AllModules
from fedshift_clients.training import precision
from fedshift_clients.training.batches import Batch, cut
from fedshift_clients.training.phases import Phase
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.methods.ggeur import GGEURParams
from fedshift_core.plural import plural
from fedshift_datasets.base import ImageSet


@dataclass(frozen=True, repr=False)
class Rows(Batch):
    """A batch of frozen features (B, F) in the place of images."""


class GGEURClient(DomainClient[GGEURParams]):
    """Trains what comes after a frozen encoder on features that it draws; contributes statistics of its own."""

    #: Drawn rows are of all nodes' features.
    per_image_loss: ClassVar[bool] = False
    #: There are as many rows of each class.
    weighs_classes: ClassVar[bool] = False

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
            p, number = self.params, self.model.num_classes
            tensors = geometry.statistics(features, y, number, least=p.least_images, most=p.pca)
            self._statistics = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        if values is not None:
            self._rows = self._drawn(features, y, values, server_round if self.params.redraw else 0)

    def training_batches(
        self, images: ImageSet, batch_size: int, views: int, order: torch.Generator, first: torch.Generator,
        second: torch.Generator, epoch: int = 0,
    ) -> Iterator[Batch]:  # fmt: skip
        """Yield the drawn rows once, in random order; the node's images before there are any."""
        if self._rows is None:
            yield from super().training_batches(images, batch_size, views, order, first, second, epoch)
            return
        features, labels = self._rows
        for place in cut(torch.randperm(len(labels), generator=order), batch_size):
            taken = place.to(labels.device)
            yield Rows(features[taken], labels[taken], epoch)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy of a batch of rows, or of images."""
        if not isinstance(batch, Rows):
            return super().loss(batch)
        projection = projection_of(self.model.encoder)
        with precision.autocast(self.setup.train.precision, self.setup.device):
            logits = self.model.classifier(batch.x if projection is None else projection(batch.x))
        return {"ce": self.cross_entropy(logits.float(), batch.y)}

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute numbers of images and, if the server lacks them, mean and covariance of each class."""
        if not self.params.samples:
            return {}
        y = torch.from_numpy(self.train_set.y)
        counts = torch.bincount(y, minlength=self.model.num_classes)
        nothing = geometry.nothing(self.model.num_classes)
        return {"counts": counts.numpy()} | (self._statistics or {n: t.numpy() for n, t in nothing.items()})

    def _frozen(self) -> tuple[Tensor, Tensor]:
        """Return the frozen features (N, F) of all training images, not augmented, and their labels (N,)."""
        self.model.eval()
        encoder, parts, labels = self.model.encoder, [], []
        with torch.inference_mode(), precision.autocast(self.setup.train.precision, self.setup.device):
            for x, y in self.plain_batches(self.train_set):
                parts.append((encoder(x) if projection_of(encoder) is None else unprojected(encoder, x)).float())
                labels.append(y)
        return torch.cat(parts).clone(), torch.cat(labels).clone()

    def _drawn(self, features: Tensor, y: Tensor, values: Tensor, server_round: int) -> tuple[Tensor, Tensor]:
        """Return rows (N', F) and their labels (N',).

        Raises:
            FedShiftError: If what the server sent does not fit together, or to the node's features.
        """
        p, number, width = self.params, self.model.num_classes, features.shape[1]
        vectors, prototypes, labels = (self.tensor(n) for n in ("eigenvectors", "prototypes", "labels"))
        if vectors is None or prototypes is None or labels is None or not (
            vectors.shape == (number, *values.shape[1:], width) and values.ndim == 2
            and prototypes.shape == (len(labels), width)
        ):  # fmt: skip
            raise FedShiftError(
                f"the server's covariances or prototypes are not of {plural(number, 'class', 'classes')}, "
                f"{plural(width, 'number')}"
            )
        rng = self.torch_rng("ggeur", server_round)
        rows, of = [], []
        for k in range(number):
            strengths = geometry.scaled(values[k], width, p.number_scaled, p.scale, p.scaled)
            made = geometry.drawn(features[y == k], prototypes[labels == k], strengths, vectors[k], p.samples, rng)
            rows.append(made)
            of.append(torch.full((len(made),), k, device=y.device))
        return torch.cat(rows), torch.cat(of)
