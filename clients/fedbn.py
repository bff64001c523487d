"""FedBN client [Li et al., 2021].

Paper: "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", Xiaoxiao Li, Meirui Jiang,
Xiaofei Zhang, Michael Kamp, Qi Dou, ICLR 2021; https://arxiv.org/abs/2102.07623 (algorithm 1).
Reference code: med-air/FedBN, commit 0927bb8.

Deviations: BatchNorm is found by the type of the module; the code looks for "bn" in names, and misses it inside
a Sequential (the shortcuts of a residual network).
"""

from clients.base import DomainClient
from clients.models.networks import SplitModel, batchnorm_names
from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_wire.errors import ConfigError
from fedshift_wire.params import Params

#: The networks with BatchNorm.
ABLE = ("cnn_bn", "resnet10", "resnet18")


class FedBNClient(DomainClient):
    """Keeps every parameter and buffer of BatchNorm on the node, whatever ``model.bn`` says."""

    @classmethod
    def check_run(cls, params: Params, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse a network without BatchNorm, and BatchNorm that never changes: both would be FedAvg."""
        if model.name not in ABLE:
            raise ConfigError(
                f"method fedbn needs a network with BatchNorm, found model.name={model.name}; there are "
                f"{', '.join(ABLE)}"
            )
        if model.bn == "freeze":
            raise ConfigError("method fedbn trains BatchNorm on each node, found model.bn=freeze; use local or average")

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: Params) -> frozenset[str]:
        """Return the names of all of BatchNorm, that of modules in the model included."""
        return super().private(model, config, params) | batchnorm_names(model)
