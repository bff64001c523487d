"""FedNova client [Wang et al., 2020].

Paper and symbols are those of the strategy (``fedshift_strategies.methods.fednova``). The node trains as FedAvg's does,
or with ``method.mu`` as FedProx's, and sends

    w - s_i (w - w_i)

in place of w_i. Buffers and private parts stay as training left them, and so does the model on the node.
"""

from typing import Any

import numpy as np

from fedshift_clients.methods.fedprox import FedProxClient
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError


class FedNovaClient(FedProxClient):
    """FedProx's client, whose change is scaled by what the server tells."""

    @classmethod
    def check_run(cls, params: Any, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse optimisers of which no |a_i| is known.

        Raises:
            ConfigError: If the optimiser is not SGD.
        """
        if train.optimizer != "sgd":
            raise ConfigError(f"method fednova: train.optimizer={train.optimizer}, allowed is sgd")

    def to_send(self, sent: Arrays, trained: Arrays) -> Arrays:
        """Return the weights with the change of parameters scaled."""
        scale = float(self.scalars.get("scale", 1.0))
        learnt = {name for name, _ in self.model.named_parameters()} if scale != 1 else set()
        return {
            name: (sent[name] + scale * (own.astype(np.float64) - sent[name])).astype(own.dtype)
            if name in learnt
            else own
            for name, own in trained.items()
        }
