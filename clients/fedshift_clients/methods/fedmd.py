"""FedMD client [Li & Wang, 2019].

Paper: "FedMD: Heterogenous Federated Learning via Model Distillation", Daliang Li, Junpu Wang, NeurIPS 2019 workshop;
https://arxiv.org/abs/1910.03581 (algorithm 1). Reference code: diogenes0319/FedMD_clean at commit ab7a07b
(``FedMD.py``).

Symbols: D_0 the public set, a window of it in each round, f_n(x) the class scores (logits) of node n, f~ their mean.

In a node's first round: its network learns D_0, then the node's own images (transfer learning). From its second on:
it digests f~, which the server made of what nodes contributed at the end of the round before, then revisits its own
images. At the end of each round it contributes its scores of the next round's window.

Deviations: (1) numbers of epochs are fixed, the code ends the first two by accuracy on test images; (2) each round
takes the next window of an order that is drawn once, the code draws anew; (3) optimiser, rate and weight decay are the
experiment's, and start anew in each phase.

B batch, C classes.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.base import Phase
from fedshift_clients.methods.own_models import KeepsModel
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.node import MODEL_PART
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.methods.fedmd import FedMDParams
from fedshift_core.plural import plural
from fedshift_datasets.base import ImageSet


def digestion(logits: Tensor, consensus: Tensor) -> Tensor:
    r"""Draw class scores to the federation's: :math:`\frac1{BC}\sum_{i,k}|l_{ik}-\tilde l_{ik}|`.

    Args:
        logits: l, (B, C).
        consensus: The mean scores of the same images, (B, C), without gradient.

    Returns:
        A scalar.
    """
    return (logits.float() - consensus.float()).abs().mean()


class FedMDClient(KeepsModel[FedMDParams]):
    """Digests the mean scores on public images, revisits its own; contributes its scores."""

    equal_features = False
    uses_public = True

    def start_round(self, server_round: int) -> None:
        """Read the mean scores and which public images they are of; see whether the node has trained before."""
        self._consensus = self.tensor("scores") if self.params.digest_epochs else None
        self._begins = not any(name.startswith(MODEL_PART) for name in self.memory)

    def phases(self, server_round: int) -> list[Phase]:
        """Return the transfer learning of a node's first round, else digest and revisit."""
        p, epochs = self.params, self.setup.train.epochs
        if self._begins:
            first = [Phase(p.public_epochs, images=self._public)] if p.public_epochs else []
            return [*first, Phase(epochs if p.first_epochs is None else p.first_epochs, fresh=True)]
        revisit = Phase(epochs, fresh=True)
        if self._consensus is None:
            return [revisit]
        window = self._window(*self.knowledge["window"].tolist())
        if self._consensus.shape != (len(window), self.model.num_classes):
            raise FedShiftError(
                f"the server's scores have shape {tuple(self._consensus.shape)}, expected "
                f"{plural(len(window), 'image')} and {plural(self.model.num_classes, 'class', 'classes')}"
            )
        # In place of its label each image carries its place among the mean scores.
        placed = window.labelled(_places(len(window)))
        digest = Phase(
            p.digest_epochs,
            lr=p.digest_lr,
            views=0,
            loss=self._digest,
            images=placed,
            batch_size=p.digest_batch,
            classes=False,
        )
        return [digest, revisit]

    def _digest(self, batch: Batch) -> Terms:
        """Return the distance to the mean scores, weighted."""
        assert self._consensus is not None
        distance = digestion(self.forward(batch.x)[1], self._consensus[batch.y])
        return {"digest": self.params.lambda_digest * distance}

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the scores of the next round's window, in evaluation mode, not augmented."""
        if not self.params.digest_epochs:
            return {}
        window = self._window(self.scalars.get("start", 0), self.scalars.get("stop", len(self._public)))
        scores, _ = self.encoded(window, lambda x: self.forward(x)[1])
        return {"scores": scores.cpu().numpy()}

    @property
    def _public(self) -> ImageSet:
        assert self.public_set is not None  # ``uses_public``
        return self.public_set()

    def _window(self, start: object, stop: object) -> ImageSet:
        """Return public images that the server names, as views.

        Raises:
            FedShiftError: If there are none such.
        """
        public = self._public
        if not isinstance(start, int) or not isinstance(stop, int) or not 0 <= start < stop <= len(public):
            raise FedShiftError(
                f"the server names the public images from {start} to {stop}, this node's copy has {len(public)}"
            )
        return public.select(slice(start, stop))


@lru_cache(maxsize=8)
def _places(number: int) -> NDArray[np.int64]:
    """Return 0, 1, ...; the same array each time, by which a device knows images that it holds already."""
    return np.arange(number, dtype=np.int64)
