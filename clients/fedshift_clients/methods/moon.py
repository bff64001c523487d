"""MOON client [Li et al., 2021].

Paper: "Model-Contrastive Federated Learning", Qinbin Li, Bingsheng He, Dawn Song, CVPR 2021;
https://arxiv.org/abs/2103.16257 (equations 3 and 4, algorithm 1). Reference code: QinbinLi/MOON, commit 2f7199e.

Symbols: z representation by the model in training, z_glob by the received global model, z_prev by the node's
previous local model, mu the weight of the contrast, tau temperature.

Deviations: (1) no projection head unless asked for (``projection``): all methods then share one network; with it,
the classifier stands on the projection, as in the paper and its code; (2) one previous model (the code can keep
several).

B batch, D width of the representation.
"""

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.base import DomainClient
from fedshift_clients.losses.common import unit
from fedshift_clients.methods.common import autocast, keep, kept, put
from fedshift_clients.models.networks import Blueprint, DeepHead, SplitModel, initialised
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.methods.moon import MoonParams


def model_contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    r"""Pull a representation to the global model's and push it off the previous local model's (MOON, Eq. 3).

    .. math:: -\frac1B\sum_i\log\frac{\exp(s(z_i,z_{glob,i})/\tau)}
        {\exp(s(z_i,z_{glob,i})/\tau)+\exp(s(z_i,z_{prev,i})/\tau)}

    with the cosine s; computed as :math:`\log(1+\exp((s_{prev}-s_{glob})/\tau))`, which cannot overflow. Where
    both references agree it is ln 2, with a gradient of exactly zero.

    Args:
        z: Of the model in training, (B, D).
        z_glob: Of the received global model, (B, D), without gradient.
        z_prev: Of the node's previous local model, (B, D), without gradient.
        tau: Temperature, above 0.

    Returns:
        A scalar in float32.
    """
    h = unit(z)
    to_global = (h * unit(z_glob)).sum(dim=1)  # B
    to_previous = (h * unit(z_prev)).sum(dim=1)  # B
    per_sample: Tensor = F.softplus((to_previous - to_global) / tau)
    return torch.mean(per_sample)


PREVIOUS = "previous/"  # prefix in a node's memory of the shared parts of its previous local model
PROJECTED = 256  # width of the projection, as in the paper


class ProjectedClassifier(DeepHead):
    """A linear classifier on the output of a projection head: D - D - ReLU - ``PROJECTED`` - C."""

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__(PROJECTED, num_classes)
        self.projection = nn.Sequential(
            nn.Linear(feature_dim, feature_dim), nn.ReLU(), nn.Linear(feature_dim, PROJECTED)
        )

    def before(self, features: Tensor) -> Tensor:
        """Map features (B, D) to their projection (B, ``PROJECTED``)."""
        return cast(Tensor, self.projection(features))


class MoonClient(DomainClient[MoonParams]):
    """Cross-entropy + mu * contrast with the global and the previous local model (Eq. 4)."""

    remembers_shared = True

    @classmethod
    def check_run(cls, params: MoonParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse two heads at once."""
        if params.projection == "mlp" and model.head != "linear":
            raise ConfigError(
                f"method.projection=mlp has a head of its own and needs model.head=linear, found {model.head}"
            )

    @classmethod
    def build_model(cls, plan: Blueprint, params: MoonParams) -> SplitModel:
        """Build the network, with a projection head where it is asked for."""
        model = super().build_model(plan, params)
        if params.projection == "mlp":
            model.classifier = initialised(
                plan.seed, "moon-projection", lambda: ProjectedClassifier(model.feature_dim, plan.num_classes)
            )
        return model

    def start_round(self, server_round: int) -> None:
        """Set up both reference models; before a node's first training the previous one is the global one.

        The contrast would then be the constant ln 2 without a gradient, so there is none.
        """
        self._references: tuple[SplitModel, SplitModel] | None = None
        previous = kept(self, PREVIOUS, self.shared_names)
        if previous:
            # Private parts (bn = local) have not changed since: they are the previous model's too.
            self._references = _reference(self.model), _reference(self.model)
            put(self._references[1], previous)

    def loss(self, batch: Batch) -> Terms:
        """Return the terms of Eq. 4, weighted."""
        if self._references is None:
            return super().loss(batch)
        z, logits = self._represent(self.model, batch.x)
        with torch.no_grad():
            z_glob, z_prev = (self._represent(reference, batch.x)[0] for reference in self._references)
        contrast = model_contrast(z, z_glob, z_prev, self.params.tau)
        return {"ce": self.cross_entropy(logits, batch.y), "contrast": self.params.mu * contrast}

    def finish_round(self, server_round: int) -> Arrays:
        """Keep the trained model for the node's next round; contribute nothing."""
        self._references = None
        if self.params.mu > 0:
            keep(self, PREVIOUS, {name: self.state[name] for name in self.shared_names})
        return {}

    def _represent(self, model: SplitModel, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is contrasted, z, and the logits (B, C), both in float32."""
        with autocast(self):
            z, logits = model(x)
            if isinstance(model.classifier, ProjectedClassifier):
                z = model.classifier.projection(z)
        return z.float(), logits.float()


def _reference(model: SplitModel) -> SplitModel:
    """Return a copy that does not train: evaluation mode, no gradients."""
    return copy.deepcopy(model).eval().requires_grad_(False)
