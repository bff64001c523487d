"""FedIIR client [Guo et al., 2023].

Paper: "Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships", Yaming Guo, Kai
Guo, Xiaofeng Cao, Tieru Wu, Yi Chang; ICML 2023, https://proceedings.mlr.press/v202/guo23b.html. Reference code:
YamingGuo98/FedIIR at commit 3e7a785 (``domainbed/algorithms.py``).

Symbols: w the head's weights, g = dCE/dw of a batch, G the mean head gradient of the federation.

    L = CE + lambda ||g - G||^2, whose gradient is taken through g

Deviations: (1) the gradient that a node contributes is of all its images, not augmented, in evaluation mode, at the
weights that it received (the code: the mean over the batches of a pass in training mode); (2) the head is the run's,
linear by default (the code: ``model.head=mlp-half``, but for RotatedMNIST).

P weights of the head, as far as they travel.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.training.batches import Batch, Terms
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.methods.fediir import FedIIRParams
from fedshift_core.plural import plural
from fedshift_core.wire.names import CE, CLASSIFIER


def gradient_of(loss: Tensor, weights: Sequence[Tensor], *, twice: bool) -> Tensor:
    """Return the gradient of a scalar with respect to weights as one row, (P,).

    Args:
        loss: The scalar.
        weights: In the order of the row.
        twice: The row has a gradient itself.
    """
    parts = torch.autograd.grad(
        loss, weights, create_graph=twice, retain_graph=twice, allow_unused=True, materialize_grads=True
    )
    return torch.cat([part.reshape(-1) for part in parts])


GRADIENT = "head-gradient"  # what a node contributes, and G as the server sends it, (P,)


class FedIIRClient(DomainClient[FedIIRParams]):
    """Cross-entropy + lambda ||g - G||^2; contributes the head's gradient."""

    def start_round(self, server_round: int) -> None:
        """Read G and take the head's gradient at the received weights, of the mean over all images of the node.

        Raises:
            FedShiftError: If G is not of this head.
        """
        head = {name: weight for name, weight in self.model.named_parameters() if name.startswith(CLASSIFIER)}
        self._head = [weight for name, weight in head.items() if name not in self._private]
        self._mean = self.tensor(GRADIENT)  # P, or None in the first round
        number = sum(weight.numel() for weight in self._head)
        if self._mean is not None and self._mean.shape != (number,):
            raise FedShiftError(
                f"{GRADIENT} of shape {tuple(self._mean.shape)}, this node's head has {plural(number, 'weight')}"
            )
        if self.params.lambda_iir > 0:
            self.model.eval()
            self._gradient = torch.zeros(number, device=self.setup.device)
            for x, y in self.plain_batches(self.train_set):
                loss = self.cross_entropy_of_each(self.forward(x)[1], y).sum() / len(self.train_set)
                self._gradient += gradient_of(loss, self._head, twice=False)

    def loss(self, batch: Batch) -> Terms:
        """Return both terms, weighted; without G (round 1) cross-entropy alone."""
        terms = super().loss(batch)
        if self.params.lambda_iir > 0 and self._mean is not None:
            g = gradient_of(terms[CE], self._head, twice=True)
            terms["iir"] = self.params.lambda_iir * (g - self._mean).square().sum()
        return terms

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the head's gradient at the weights that were received."""
        return {GRADIENT: self._gradient.cpu().numpy()} if self.params.lambda_iir > 0 else {}
