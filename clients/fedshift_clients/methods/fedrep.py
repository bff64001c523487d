"""FedRep client [Collins et al., 2021].

Paper: "Exploiting Shared Representations for Personalized Federated Learning", Liam Collins, Hamed Hassani, Aryan
Mokhtari, Sanjay Shakkottai, ICML 2021; https://arxiv.org/abs/2102.07078 (algorithm 1).
Reference code: lgcollins/FedRep, commit d82e629.

Symbols: phi the body (encoder), h_n the node's head (classifier). From the received phi, ``head_epochs`` epochs on h_n,
then ``body_epochs`` on phi with h_n as it is then; phi travels, h_n stays.

Deviations: (1) while it is frozen, the body is in evaluation mode: its BatchNorm classifies by its running statistics
and leaves them as they are (the reference code's networks have none); (2) nodes are scored with the averaged body and
the head of their last training, as in the reference code's rounds; its further last round, in which only heads train,
is left out.
"""

from fedshift_clients.base import Phase
from fedshift_clients.methods.common import names_of
from fedshift_clients.methods.heads import HeadFirst
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.methods.fedrep import FedRepParams
from fedshift_core.wire.names import CLASSIFIER


class FedRepClient(HeadFirst[FedRepParams]):
    """Cross-entropy on the head and on the body by turns."""

    @classmethod
    def trains_encoder_alone(cls, params: FedRepParams) -> bool:
        """Return whether the body has epochs of its own."""
        return params.by_turns

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: FedRepParams) -> frozenset[str]:
        """Return the head's names."""
        return super().private(model, config, params) | names_of(model, CLASSIFIER if params.personal_head else ())

    def phases(self, server_round: int) -> list[Phase]:
        """Return the head's epochs, then the body's."""
        if not self.params.by_turns:
            return list(super().phases(server_round))
        epochs, head_epochs, body_epochs = self.setup.train.epochs, self.params.head_epochs, self.params.body_epochs
        if head_epochs is None:  # both together have train.epochs, each at least one
            body_epochs = min(body_epochs, max(epochs - 1, 1))
            head_epochs = max(epochs - body_epochs, 1)
        return [Phase(head_epochs, trains=(CLASSIFIER,)), Phase(body_epochs, freezes=(CLASSIFIER,))]
