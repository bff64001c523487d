"""FedICON's test-time adaptation (TTA) over any training method [Tan et al., 2023].

Paper: "Is Heterogeneity Notorious? Taming Heterogeneity to Handle Test-Time Shift in Federated Learning",
Yue Tan, Chen Chen, Weiming Zhuang, Xin Dong, Lingjuan Lyu, Guodong Long, NeurIPS 2023 (equation 5, algorithm 1).
Reference code: none published.

The encoder is tuned on the node's unlabelled test images by the contrast of two views of each; the classifier, and a
projection head where the model has one, stay as they are. Deviation: the adapted encoder is made anew, from the
weights received, whenever a test set is scored (A8).
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.adapt.base import Adaptation, Places
from fedshift_clients.adapt.params import ContrastParams
from fedshift_clients.images.augment import Pipeline
from fedshift_clients.losses import contrast as terms
from fedshift_clients.models.networks import set_training
from fedshift_clients.training import optimizers
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ImageConfig
from fedshift_clients.training.trainer import LocalTrainer
from fedshift_core.errors import ConfigError
from fedshift_datasets.base import ImageSet

PROJECTION = "projection"  # a model's part that makes z of features, if there is one


class ContrastAdaptation(Adaptation[ContrastParams]):
    """Tunes the encoder by Eq. 5 on the test images before they are scored."""

    tunes_encoder = True

    def check(self, images: ImageConfig) -> None:
        """Refuse a contrast of two views that are the same image."""
        if not self.params.views(images).augmentations:
            raise ConfigError(
                "adapt.name=fedicon contrasts two augmented views of each image, but no augmentation is on: set "
                "crop_padding, flip, resized_crop, jitter or grayscale under adapt (for the views alone) or images"
            )

    def adapt(self, client: LocalTrainer, images: NDArray[np.uint8]) -> Iterator[Places]:
        """Tune the encoder on images (N, H, W, 3), classifier and projection fixed."""
        p, model = self.params, client.model
        frozen_bn = client.setup.model.bn == "freeze"
        set_training(model.encoder, freeze_batchnorm=frozen_bn)
        model.hold_still()
        tuned = [weight for weight in model.encoder.parameters() if weight.requires_grad]
        model.requires_grad_(False)
        for weight in tuned:
            weight.requires_grad_(True)
        optimizer = optimizers.sgd(tuned, lr=p.lr, momentum=p.momentum, weight_decay=p.weight_decay)
        pipeline = Pipeline(p.views(client.setup.images), client.setup.device)
        # In place of labels, which are not known here, each image carries its place.
        unlabelled = ImageSet(images, np.arange(len(images), dtype=np.int64))
        purposes = ("fedicon-tta-order", "fedicon-tta-first", "fedicon-tta-second")
        order, first, second = (client.torch_rng(purpose, client.server_round) for purpose in purposes)
        for _ in range(p.epochs):
            for batch in client.augmented_batches(unlabelled, p.batch_size, 2, order, first, second, pipeline=pipeline):
                set_training(model.encoder, freeze_batchnorm=frozen_bn)  # scoring in between ends it
                model.hold_still()
                loss = terms.instance_contrast(*two_views(client, batch), p.tau)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if p.mode == "online":
                    yield batch.y.cpu().numpy()
        if p.mode == "transductive":
            yield np.arange(len(images))


def two_views(client: LocalTrainer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return z of both views (Eq. 1), (B, D) each, in one pass; behind the projection head, if there is one."""
    assert batch.second is not None
    z, _ = client.forward(torch.cat((batch.x, batch.second)))  # 2B x D
    if hasattr(client.model, PROJECTION):
        z = client.model.get_submodule(PROJECTION)(z)
    first, second = z.chunk(2)
    return first, second
