"""FedTGP client [Zhang et al., 2024].

Paper: "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data and Model
Heterogeneity in Federated Learning", Jianqing Zhang, Yang Liu, Yang Hua, Jian Cao; AAAI 2024,
https://arxiv.org/abs/2401.03230. Reference code: TsingZ0/FedTGP at commit c77cbbb (``flcore/clients/clienttgp.py``).

Symbols: z features, P^y the trained global prototype of the class, lambda the weight.

The node's part is FedProto's: CE + lambda ||z - P^y||^2, with the prototypes that the server trained.

Deviations: (1) the nodes' prototypes are means over all training images, which the code loses a last batch of; (2)
classification is by the head, the code's by the nearest prototype (``predict_by``); (3) weights may be averaged as well
(``share_weights``), as later papers compare with it.
"""

from fedshift_clients.methods.fedproto import FedProtoClient
from fedshift_core.methods.fedtgp import FedTGPParams


class FedTGPClient(FedProtoClient[FedTGPParams]):
    """FedProto's client; what differs is where the global prototypes come from."""
