"""Fine-tuning: one more local training round on the node's own training images before a test image is scored.

No paper of its own; as FedAvg-FT in FedICON's comparison (Tan et al., NeurIPS 2023, A.3). The tuned copy lives for one
evaluation only, so training and the global model are those of the method without it, bit for bit.

Deviations: (1) the copy is made anew in every scored round, the paper names the last one; (2) it is what the node's
next local round would make of the weights (its order of images, its augmentation, the method's own loss).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.adapt.base import Adaptation, Places
from fedshift_clients.adapt.params import FinetuneParams
from fedshift_clients.training.arrays import cloned, put
from fedshift_clients.training.trainer import LocalTrainer


class Finetune(Adaptation[FinetuneParams]):
    """Trains the received model for ``epochs`` more epochs; all domains of one call share the tuned copy."""

    before = "before-fine-tuning"
    scores_images_alone = True
    keeps_frozen = True
    uses_training_images = True
    after_training = False  # what local training left is tuned already

    def __init__(self, params: FinetuneParams) -> None:
        super().__init__(params)
        self._tuned: dict[str, Tensor] | None = None

    def received(self, client: LocalTrainer) -> None:
        """Forget the copy that was made of other weights."""
        self._tuned = None

    def adapt(self, client: LocalTrainer, images: NDArray[np.uint8]) -> Iterator[Places]:
        """Put the tuned copy into the model; the first time in a call, train it."""
        state = client.model.state_dict()
        if self._tuned is None:
            client.train_ahead(self.params.epochs)
            self._tuned = cloned(state)
        else:
            put(state, self._tuned)
        yield np.arange(len(images))
