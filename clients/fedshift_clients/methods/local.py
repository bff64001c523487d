"""Local client (SOLO): every node trains alone, no weights travel.

No paper of its own; the lower bound of FedCode, FedICON (A.3) and FedSeProto. ``rounds`` times ``train.epochs``
epochs of cross-entropy, as many as in a federated run, from the run's initial weights.

Deviations: none. The optimiser's momentum starts anew each round, as in every federated run.
"""

from fedshift_clients.base import DomainClient
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.params import Params


class LocalClient(DomainClient):
    """Keeps the whole model on the node, so that nodes may have different networks."""

    heterogeneous = True
    equal_features = False

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: Params) -> frozenset[str]:
        """Return the names of everything."""
        return frozenset(model.state_dict())
