"""Nodes that keep their whole model and are led by the server's prototypes, so that their networks may differ."""

from typing import Any

from torch import Tensor
from typing_extensions import TypeVar

from fedshift_clients.losses.prototypes import nearness
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.prototypes import PrototypeClient, by_class
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.errors import ConfigError
from fedshift_core.methods.prototypes import OwnModelParams

OwnModelP = TypeVar("OwnModelP", bound=OwnModelParams, default=Any)


class OwnModelClient(PrototypeClient[OwnModelP]):
    """Shares class prototypes, and weights only with ``params.share_weights``; classifies by ``params.predict_by``."""

    heterogeneous = True

    @classmethod
    def check_run(cls, params: OwnModelP, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse to average weights of different networks."""
        if model.per_node and params.share_weights:
            raise ConfigError(
                f"model.per_node={list(model.per_node)} gives nodes different networks, whose weights cannot be "
                "averaged: set method.share_weights=false"
            )

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: OwnModelP) -> frozenset[str]:
        """Keep the whole model on the node, unless weights are shared."""
        if params.share_weights:
            return super().private(model, config, params)
        return frozenset(model.state_dict())

    def predict(self, x: Tensor) -> Tensor:
        """Return the classifier's logits, or how near the newest global prototypes are."""
        features, logits = self.forward(x)
        targets = self.global_prototypes() if self.params.predict_by == "prototype" else None
        return logits if targets is None else nearness(features, *targets)

    def global_prototypes(self) -> tuple[Tensor, Tensor] | None:
        """Return G (C, D) and which classes have one (C,); None while no class has."""
        return by_class(self.tensor("prototypes"), self.tensor("labels"), self.model.num_classes)
