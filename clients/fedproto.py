"""FedProto client [Tan et al., 2022].

Paper: "FedProto: Federated Prototype Learning across Heterogeneous Clients", Yue Tan, Guodong Long, Lu Liu,
Tianyi Zhou, Qinghua Lu, Jing Jiang, Chengqi Zhang; AAAI 2022, https://arxiv.org/abs/2105.00243.
Reference code: yuetan031/FedProto at commit cb3c41f (``lib/update.py``, ``update_weights_het``).

Symbols: z features, G global prototypes, p_n^k prototype of node n and class k, lambda the weight.

Deviations: (1) samples whose class has no prototype are left out of the mean, which the code divides by all;
(2) prototypes are taken after training in evaluation mode (``proto_source``; the code gathers them while it
trains); (3) weights may be averaged as well (``share_weights``), as later papers compare with it.
"""

from typing import Literal, cast

from pydantic import Field
from torch import Tensor

from clients import losses
from clients.losses import fedproto as terms_of_fedproto
from clients.models.networks import SplitModel
from clients.training.batches import Batch
from clients.training.prototypes import ProtoSource, PrototypeClient, by_class
from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_wire.errors import ConfigError
from fedshift_wire.params import Params


class FedProtoParams(Params):
    """The node's side of FedProto."""

    lambda_proto: float = Field(1.0, ge=0)  # lambda: 1, in the code 0.1 for CIFAR-10; 0 turns the term off
    share_weights: bool = False  # average weights too; false: the whole model stays on the node, as in the paper
    reduction: Literal["mse_mean", "sum"] = "mse_mean"  # mean over D (code), or sum (paper)
    predict_by: Literal["head", "prototype"] = "head"  # classifier, or nearest global prototype
    proto_source: ProtoSource = "after_training"


class FedProtoClient(PrototypeClient):
    """Cross-entropy + lambda ||z - G^y||^2; contributes class prototypes."""

    params_model = FedProtoParams
    heterogeneous = True
    params: FedProtoParams

    @classmethod
    def check_run(cls, params: Params, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse to average weights of different networks."""
        if model.per_node and cast(FedProtoParams, params).share_weights:
            raise ConfigError(
                f"model.per_node={list(model.per_node)} gives nodes different networks, whose weights cannot be "
                "averaged: set method.share_weights=false"
            )

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: Params) -> frozenset[str]:
        """Keep the whole model on the node, unless weights are shared."""
        if cast(FedProtoParams, params).share_weights:
            return super().private(model, config, params)
        return frozenset(model.state_dict())

    def start_round(self, server_round: int) -> None:
        """Read the global prototypes."""
        self._targets = self._global_prototypes()

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return both terms, weighted; without global prototypes cross-entropy alone."""
        p = self.params
        features, logits = self.forward(batch.x)  # B x D, B x C
        self.gather(features, batch.y)
        terms = {"ce": losses.cross_entropy(logits, batch.y)}
        if p.lambda_proto > 0 and self._targets is not None:
            distance = terms_of_fedproto.prototype_distance(features, batch.y, *self._targets, reduction=p.reduction)
            terms["proto"] = p.lambda_proto * distance
        return terms

    def predict(self, x: Tensor) -> Tensor:
        """Return the classifier's logits, or how near the newest global prototypes are."""
        features, logits = self.forward(x)
        targets = self._global_prototypes() if self.params.predict_by == "prototype" else None
        return logits if targets is None else terms_of_fedproto.nearness(features, *targets)

    def _global_prototypes(self) -> tuple[Tensor, Tensor] | None:
        """Return G (C, D) and which classes have one (C,); None while no class has."""
        return by_class(self.tensor("prototypes"), self.tensor("labels"), self.model.num_classes)
