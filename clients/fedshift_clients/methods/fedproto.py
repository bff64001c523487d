"""FedProto client [Tan et al., 2022].

Paper: "FedProto: Federated Prototype Learning across Heterogeneous Clients", Yue Tan, Guodong Long, Lu Liu,
Tianyi Zhou, Qinghua Lu, Jing Jiang, Chengqi Zhang; AAAI 2022, https://arxiv.org/abs/2105.00243.
Reference code: yuetan031/FedProto at commit cb3c41f (``lib/update.py``, ``update_weights_het``).

Symbols: z features, G global prototypes, p_n^k prototype of node n and class k, lambda the weight.

Deviations: (1) samples whose class has no prototype are left out of the mean, which the code divides by all;
(2) prototypes are taken after training in evaluation mode (``proto_source``; the code gathers them while it
trains); (3) weights may be averaged as well (``share_weights``), as later papers compare with it.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from typing_extensions import TypeVar

from fedshift_clients.losses import prototypes as terms_of_fedproto
from fedshift_clients.methods.own_models import OwnModelClient
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.prototypes import sent_prototypes
from fedshift_core.methods.fedproto import DistanceParams

FedProtoP = TypeVar("FedProtoP", bound=DistanceParams, default=Any)


class FedProtoClient(OwnModelClient[FedProtoP]):
    """Cross-entropy + lambda ||z - G^y||^2; contributes class prototypes."""

    def start_round(self, server_round: int) -> None:
        """Read the global prototypes."""
        self._targets = sent_prototypes(self)

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return the distance, weighted, where there are global prototypes."""
        return self._term(terms_of_fedproto.prototype_distance, features, batch)

    def own_terms_of_each(self, features: Tensor, batch: Batch) -> Terms:
        """Return the distance of each image (B,), weighted; 0 where its class has no global prototype."""
        return self._term(terms_of_fedproto.distance_of_each, features, batch)

    def _term(self, distance: Callable[..., Tensor], features: Tensor, batch: Batch) -> Terms:
        p = self.params
        if p.lambda_proto == 0 or self._targets is None:
            return {}
        return {"proto": p.lambda_proto * distance(features, batch.y, *self._targets, reduction=p.reduction)}
