"""Adaptations that predict a test set as a stream: batch after batch, each changed by those before it.

Results depend on the order of the images and on the size of the batches, so both are part of the protocol: images come
in a mixed order unless ``order`` says otherwise (files are listed class by class, and a batch of one class misleads an
adaptation), and ``batch_size`` at a time. Each test set begins anew.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypeVar

from fedshift_clients.adapt.base import Adaptation, Places
from fedshift_clients.adapt.batchnorm import adaptable
from fedshift_clients.adapt.finetune import Finetune
from fedshift_clients.adapt.params import FinetuneParams, StreamParams
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.settings import ModelConfig
from fedshift_clients.training.trainer import LocalTrainer
from fedshift_core.errors import ConfigError
from fedshift_datasets.base import ImageSet

Predictor = Callable[[Tensor], Tensor]
LEAST = 2  # images of a batch, if there are so many: BatchNorm has no variance over one


StreamP = TypeVar("StreamP", bound=StreamParams, default=Any)


class Stream(Adaptation[StreamP]):
    """Predicts each image once, in the pass that its batch adapts by."""

    #: Its name in a configuration.
    name: ClassVar[str]
    #: Whether it adapts BatchNorm.
    of_batchnorm: ClassVar[bool] = False

    def __init__(self, params: StreamP) -> None:
        super().__init__(params)
        self._finetune = Finetune(FinetuneParams(epochs=self.params.ft_epochs))
        self._logits = torch.zeros(0, 0)
        self._next = 0

    @property
    def goes_by_order(self) -> bool:
        """Whether a score depends on the order of the test set."""
        return self.params.order == "test"

    def check_model(self, model: SplitModel, config: ModelConfig) -> None:
        """Refuse a network without BatchNorm that may change, where that is adapted."""
        if not self.of_batchnorm:
            return
        who = f"adapt.name={self.name}"
        if config.bn == "freeze":
            raise ConfigError(f"{who} adapts BatchNorm, and model.bn=freeze keeps it as it is; t3a needs none")
        adaptable(model, who, f"the network {config.name}")

    def received(self, client: LocalTrainer) -> None:
        """Forget the tuned copy of other weights."""
        self._finetune.received(client)

    def predictor(self, client: LocalTrainer) -> Predictor:
        """Return what predicts batch after batch and adapts by each, at its beginning; it may change the model."""
        raise NotImplementedError

    def adapt(self, client: LocalTrainer, images: NDArray[np.uint8]) -> Iterator[Places]:
        """Predict all images (N, H, W, 3), then have them scored by what was predicted."""
        if self.params.ft_epochs is not None and not client.trained_here:
            for _ in self._finetune.adapt(client, images):
                pass
        client.model.eval()
        if self.of_batchnorm and len(images) < LEAST:  # nothing to adapt by
            run: Predictor = torch.no_grad()(client.predict)
        else:
            run = self.predictor(client)
        client.start_pass()  # Fisher values, too, are of a pass over images
        order = np.arange(len(images))
        if self.params.order == "shuffled":
            rng = client.torch_rng("adapt-order", client.server_round)
            order = torch.randperm(len(images), generator=rng).numpy()
            images = images[order]
        unlabelled = ImageSet(images, np.zeros(len(images), dtype=np.int64))
        batches = client.plain_batches(unlabelled, LEAST, self.params.batch_size)
        predicted = torch.cat([run(x) for x, _ in batches])  # N x C
        self._logits, self._next = torch.empty_like(predicted), 0
        self._logits[torch.from_numpy(order).to(predicted.device)] = predicted
        yield np.arange(len(images))

    def predict(self, client: LocalTrainer, x: Tensor) -> Tensor:
        """Return what was predicted, (B, C), of the next images; after the last comes the first."""
        places = (self._next + torch.arange(len(x), device=self._logits.device)) % len(self._logits)
        self._next = (self._next + len(x)) % len(self._logits)
        return self._logits[places]
