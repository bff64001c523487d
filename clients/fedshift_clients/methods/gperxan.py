"""gPerXAN client [Le et al., 2024].

Paper: "Efficiently Assemble Normalization Layers and Regularization for Federated Domain Generalization", Khiem Le,
Long Ho, Cuong Do, Danh Le-Phuoc, Kok-Seng Wong, CVPR 2024; https://arxiv.org/abs/2403.15605. Reference code:
lhkhiem28/gPerXAN, commit 9eebbc1.

Each BatchNorm of a map becomes a mixture of itself, which is the node's own, and of an instance norm, which all nodes
share. The features must also be classified rightly by the head as the server sent it.

Symbols: BN and IN the two norms, s_BN and s_IN a learned number for each layer, w = softmax(s_BN, s_IN), g the local
head, g-bar the received one, z features, lambda weight of the regulariser.

Deviations: (1) s_BN stays with BN, as in the code, whose test for the word "batchnorm" holds for its name too; (2)
nodes are scored with their own BN; the code sends it all the same, and its server scores their average, which is
``batch_norm=averaged``; (3) BatchNorm of features, and not of maps, is as the network has it, and stays on the node.
"""

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.common import keep, kept, put
from fedshift_clients.models.networks import Blueprint, SplitModel, batchnorm_names, follows
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.methods.gperxan import GPerXANParams

OWN = "batch-norm/"  # prefix in a node's memory of its BatchNorm, where an average of them is scored
#: What all nodes share of a layer: scale and shift of its instance norm, and how much that counts.
SHARED = (".instance_weight", ".instance_bias", ".instance_score")


class AssembledNorm(nn.BatchNorm2d):
    """Replaces a BatchNorm: w_BN BN(x) + w_IN IN(x); the names of BatchNorm stay.

    Args:
        norm: Whose place it takes, with its values.
    """

    #: What BatchNorm has not: a file of pretrained weights need not have it either.
    added = ("instance_weight", "instance_bias", "score", "instance_score")

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self.load_state_dict(norm.state_dict())
        self.instance_weight = nn.Parameter(torch.ones(norm.num_features))
        self.instance_bias = nn.Parameter(torch.zeros(norm.num_features))
        self.score = nn.Parameter(torch.ones(1))
        self.instance_score = nn.Parameter(torch.ones(1))
        self.then = nn.Sequential(*follows(norm))

    def instance_norm(self, x: Tensor) -> Tensor:
        """Return IN(x); of a map of one pixel, which has no deviation, the shift."""
        if x.shape[2] * x.shape[3] == 1:
            return torch.zeros_like(x) + self.instance_bias[:, None, None].to(x.dtype)
        return F.instance_norm(x, weight=self.instance_weight, bias=self.instance_bias, eps=self.eps)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, C, H, W)."""
        of_batch, of_instance = torch.cat([self.score, self.instance_score]).softmax(0)
        return cast(Tensor, self.then(of_batch * super().forward(x) + of_instance * self.instance_norm(x)))


def assembled(model: SplitModel, name: str) -> SplitModel:
    """Put an :class:`AssembledNorm` in the place of each BatchNorm of maps of a model's encoder.

    Raises:
        ConfigError: If there is none, or one of an unknown kind.
    """
    replaced = 0
    for parent in list(model.encoder.modules()):
        for key, norm in list(parent.named_children()):
            if isinstance(norm, nn.BatchNorm2d):
                setattr(parent, key, AssembledNorm(norm))
                replaced += 1
    if not replaced:
        raise ConfigError(f"method gperxan mixes norms of maps; the network {name!r} has no BatchNorm of maps")
    return model


class GPerXANClient(DomainClient[GPerXANParams]):
    """Cross-entropy of the local head and, lambda times, of the received one, over norms that are partly the node's."""

    @classmethod
    def check_run(cls, params: GPerXANParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse norms that do not train, and layers that are computed once."""
        if model.precompute:
            raise ConfigError(
                "model.precompute=on: gperxan gives each node norms of its own within the encoder; set it off"
            )
        if model.freeze in ("encoder", "norm"):
            raise ConfigError(
                f"model.freeze={model.freeze}: the norms that gperxan gives each node would never change; allowed are "
                "none and stages:N"
            )
        if model.bn not in ("average", "local"):
            raise ConfigError(f"method gperxan trains BatchNorm: model.bn={model.bn}; allowed are average, local")

    @classmethod
    def build_model(cls, plan: Blueprint, params: GPerXANParams) -> SplitModel:
        """Build the network, with the weights of FedAvg's, and mixtures in the place of BatchNorm."""
        return assembled(super().build_model(plan, params), plan.config.name)

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: GPerXANParams) -> frozenset[str]:
        """Return BatchNorm's names with its scores; with ``bn=local`` the instance norms' too."""
        if config.bn == "local":
            return batchnorm_names(model)
        return _own_names(model) if params.batch_norm == "own" else frozenset()

    def start_round(self, server_round: int) -> None:
        """Keep the received head, and go on with the node's own BatchNorm where an average came."""
        self._guide = copy.deepcopy(self.model.classifier).requires_grad_(False) if self.params.lambda_guide else None
        put(self.model, kept(self, OWN, self._averaged()))

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return the cross-entropy of the received head on the same features, weighted."""
        if self._guide is None:
            return {}
        return {"guide": self.params.lambda_guide * self.cross_entropy(self._guide(features), batch.y)}

    def finish_round(self, server_round: int) -> Arrays:
        """Keep the node's own BatchNorm where it is sent for an average; contribute nothing."""
        self._guide = None
        keep(self, OWN, self._averaged())
        return {}

    def _averaged(self) -> dict[str, Tensor]:
        """Return what is the node's own and is sent to be averaged, by name."""
        return {name: self.state[name] for name in sorted(_own_names(self.model) - self._private - self.model.frozen)}


def _own_names(model: SplitModel) -> frozenset[str]:
    return frozenset(name for name in batchnorm_names(model) if not name.endswith(SHARED))
