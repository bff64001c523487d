"""Parameters of the adaptations. No torch: each command reads them."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from fedshift_clients.training.settings import AUGMENTATION, Crop, ImageConfig, Jitter, Padding
from fedshift_core.params import BatchSize, Fraction, Params, Probability, Rounds, Share


class StreamParams(Params):
    """Common to all of them."""

    batch_size: BatchSize = 64
    """Test images in a batch."""
    order: Literal["test", "shuffled"] = "shuffled"
    """Order of the test images: shuffled drawn for node and round, test as the test set has them, which may be class by
    class.
    """
    ft_epochs: Rounds | None = None
    """Local epochs that train the received model before it adapts, unless local training has just left it; null: none.

    """


class TentParams(StreamParams):
    """Parameters of Tent; values are the paper's for all but ImageNet."""

    batch_size: BatchSize = 128
    """Test images in a batch."""
    lr: PositiveFloat = 1e-3
    """Learning rate of Adam."""
    steps: Rounds = 1
    """Steps on each batch, which the pass of the last one predicts."""


class EATAParams(StreamParams):
    """Parameters of EATA; the defaults are the paper's for CIFAR-10, ten classes. Its code's are for ImageNet."""

    lr: PositiveFloat = 0.005
    """Learning rate of SGD: 0.005 for CIFAR-10, 0.00025 for ImageNet."""
    momentum: Fraction = 0.9
    """Momentum of SGD; 0: none."""
    #: 0.4 ln 1000 is more than ten classes can have: all are sure.
    margin: float | None = Field(None, gt=0)
    """Largest entropy in nats of an image that is learned from (E_0); null: 0.4 ln C for C classes; FedICON takes 0.4
    ln 1000.
    """
    redundancy: Share = 0.4
    """Largest cosine with the mean prediction of an image that is learned from (epsilon, Eq. 5): 0.4 for ten classes,
    0.05 for 1,000.
    """
    fisher_alpha: NonNegativeFloat = 1.0
    """Weight of the Fisher regulariser (beta): 1 for CIFAR-10, 2,000 for ImageNet; 0: off."""
    fisher_samples: int = Field(2000, ge=1, le=1_000_000)
    """Largest number of the node's training images behind the Fisher values."""


class T3AParams(StreamParams):
    """Parameters of T3A."""

    batch_size: BatchSize = 32
    """Test images in a batch."""
    supports: int | None = Field(50, ge=1, le=1_000_000)
    """Largest number of supports of a class (M): the paper's choices are 1, 5, 20, 50, 100 and all; null: all."""


class FinetuneParams(Params):
    """Parameters of fine-tuning."""

    epochs: Rounds | None = None
    """Local epochs before a test; null: `train.epochs`."""


class ContrastParams(Params):
    """Parameters of the adaptation; the paper gives none of them."""

    tau: PositiveFloat = 0.07
    """Temperature of Eq. 5; the paper gives none, 0.07 is SupCon's."""
    mode: Literal["transductive", "online"] = "transductive"
    """When images are predicted: after all epochs (transductive), or each batch after its step (online)."""
    epochs: Rounds = 1
    """Epochs over the test set."""
    batch_size: BatchSize = 32
    """Test images in a batch."""
    lr: PositiveFloat = 0.001
    """Learning rate of SGD."""
    momentum: Fraction = 0.0
    """Momentum of SGD; 0: none."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of SGD; 0: none."""
    crop_padding: Padding | None = None
    """Pixels of padding before the random crop of the two views; 0: no crop; null: as `images` says."""
    flip: bool | None = None
    """Whether the two views are flipped at random; null: as `images` says."""
    resized_crop: Crop | None = None
    """Area of the random resized crop of the two views, as shares of the image; [1, 1]: the whole image; null: as
    `images` says.
    """
    jitter: Jitter | None = None
    """Strength of brightness, contrast, saturation and hue in the two views; 0: off; null: as `images` says."""
    jitter_p: Probability | None = None
    """Probability that a view is jittered; null: as `images` says."""
    grayscale: Probability | None = None
    """Probability that a view loses its colour; 0: off; null: as `images` says."""

    def views(self, images: ImageConfig) -> ImageConfig:
        """Return how the two views are made, from how training images are augmented."""
        return images.model_copy(update=self.model_dump(include={*AUGMENTATION, "jitter_p"}, exclude_none=True))

    @model_validator(mode="after")
    def _online_sees_a_batch_once(self) -> "ContrastParams":
        if self.mode == "online" and self.epochs != 1:
            raise ValueError(f"mode=online needs epochs=1, found {self.epochs}: each batch comes once")
        return self
