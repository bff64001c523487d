"""Nodes that keep their whole model, so that their networks may differ; some are led by the server's prototypes."""

from typing import Any

from torch import Tensor
from typing_extensions import TypeVar

from fedshift_clients.base import DomainClient
from fedshift_clients.losses.prototypes import nearness
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.prototypes import PrototypeClient, sent_prototypes
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.errors import ConfigError
from fedshift_core.methods.prototypes import OwnModelParams
from fedshift_core.params import P

OwnModelP = TypeVar("OwnModelP", bound=OwnModelParams, default=Any)


class KeepsModel(DomainClient[P]):
    """Keeps the whole model on the node, so that nodes may have different networks."""

    heterogeneous = True

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: P) -> frozenset[str]:
        """Return the names of everything."""
        return frozenset(model.state_dict())


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
        return super().private(model, config, params) if params.share_weights else frozenset(model.state_dict())

    def predict(self, x: Tensor) -> Tensor:
        """Return the classifier's logits, or how near the newest global prototypes are."""
        features, logits = self.forward(x)
        targets = sent_prototypes(self) if self.params.predict_by == "prototype" else None
        return logits if targets is None else nearness(features, *targets)
