"""FedGH client [Yi et al., 2023].

Paper: "FedGH: Heterogeneous Federated Learning with Generalized Global Header", Liping Yi, Gang Wang, Xiaoguang Liu,
Zhuan Shi, Han Yu; ACM Multimedia 2023, https://arxiv.org/abs/2303.13137. Reference code: LipingYi/FedGH at commit
ff50ac0 (``FLHetero/FedGH.py``, ``FedGH_mh.py``).

Symbols: phi_n the node's body (encoder), psi the global head (classifier), p_n^k prototypes.

The node puts psi in its head's place, trains both on cross-entropy, and sends p_n^k of the trained phi_n. The head as
local training left it goes nowhere: the next psi takes its place.

Deviations: (1) p_n^k is the mean over all images of the class, in evaluation mode and not augmented (``proto_source``;
the code: the mean over batches of their means, as batches come); (2) gradients are cut where ``train.clip`` says so
(the code: always, at norm 50).
"""

from fedshift_clients.methods.common import put, sent
from fedshift_clients.methods.own_models import KeepsModel
from fedshift_clients.training.prototypes import PrototypeClient
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedgh import FedGHParams
from fedshift_core.wire.names import HEAD


class FedGHClient(PrototypeClient[FedGHParams], KeepsModel[FedGHParams]):
    """Trains its own body behind the global head, and contributes class prototypes; no weights leave it."""

    @classmethod
    def check_run(cls, params: FedGHParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse a head that the server cannot train."""
        if model.head != "linear":
            raise ConfigError(
                f"model.head={model.head}: method fedgh trains a linear head on the server; allowed is linear"
            )

    def received(self) -> None:
        """Put the global head into the model; before there is one, the node's own serves."""
        put(self.model.classifier, sent(self, HEAD))
