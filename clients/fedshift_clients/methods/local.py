"""Local client (SOLO): every node trains alone, no weights travel.

No paper of its own; the lower bound of FedCode, FedICON (A.3) and FedSeProto. ``rounds`` times ``train.epochs``
epochs of cross-entropy, as many as in a federated run, from the run's initial weights.

Deviations: none. The optimiser's momentum starts anew each round, as in every federated run.
"""

from fedshift_clients.methods.own_models import KeepsModel


class LocalClient(KeepsModel):
    """Keeps the whole model on the node, so that nodes may have different networks."""

    equal_features = False
