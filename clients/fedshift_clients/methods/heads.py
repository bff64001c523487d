"""Heads that train by themselves, before or without the body."""

from fedshift_clients.base import DomainClient
from fedshift_clients.models.networks import set_training
from fedshift_core.params import P


class HeadFirst(DomainClient[P]):
    """Trains heads alone in phases that name what trains; nothing of the body moves then.

    Statistics of BatchNorm and dropout stand still too.
    """

    def start_epoch(self, epoch: int) -> None:
        """Let the body stand still, or train."""
        set_training(self.model, freeze_batchnorm=self.setup.model.bn == "freeze")
        if self.phase.trains is not None:
            self.model.encoder.eval()
