"""Parameters of :mod:`fedshift_clients.adapt.fedicon` and :mod:`fedshift_clients.methods.fedicon`. No torch."""

from typing import Literal

from pydantic import Field, model_validator

from fedshift_clients.training.settings import Crop, ImageConfig, Jitter, Padding, Probability
from fedshift_core.params import BatchSize, Params, Rounds


class FedICONParams(Params):
    """The node's side of FedICON."""

    lie: bool = Field(
        True,
        description="Whether local training learns invariance by contrast (Eq. 2); false: cross-entropy end to end on"
        " one view (Table 8).",
    )
    gis: bool = Field(True, description="Whether weights travel; false: none ever leaves a node (Table 8).")
    supervised: bool = Field(
        True, description="Whether the contrast uses labels (Eq. 2); false: FedICON-us, Eq. 5 (Table 9)."
    )
    tau: float = Field(0.07, gt=0, description="Temperature of Eqs 2 and 5; the paper gives none, 0.07 is SupCon's.")
    projection: Literal["none", "mlp"] = Field(
        "none", description="Contrast of the features themselves (none), or behind a two-layer head that travels (mlp)."
    )
    classifier_training: Literal["federated_personal", "federated", "local"] = Field(
        "federated_personal",
        description="Training of the classifier: federated rounds and then personal epochs, federated rounds only, or"
        " personal epochs only from the initial classifier (local, section 3.1).",
    )
    classifier_epochs: Rounds = Field(1, description="Local epochs of a classifier round.")
    personal_epochs: Rounds = Field(5, description="Epochs of the personal classifier, with train.lr.")

    @model_validator(mode="after")
    def _projection_is_trained(self) -> "FedICONParams":
        if self.projection != "none" and not self.lie:
            raise ValueError(f"projection={self.projection} needs lie=true: nothing else trains it")
        return self

    @property
    def personalises(self) -> bool:
        """Whether each node makes the classifier its own."""
        return self.lie and self.classifier_training != "federated"


OF_VIEWS = ("crop_padding", "flip", "resized_crop", "jitter", "jitter_p", "grayscale")  # of the section images


class ContrastParams(Params):
    """Parameters of the adaptation; the paper gives none of them."""

    tau: float = Field(0.07, gt=0, description="Temperature of Eq. 5; the paper gives none, 0.07 is SupCon's.")
    mode: Literal["transductive", "online"] = Field(
        "transductive",
        description="When images are predicted: after all epochs (transductive), or each batch after "
        "its step (online).",
    )
    epochs: Rounds = Field(1, description="Epochs over the test set.")
    batch_size: BatchSize = Field(32, description="Test images in a batch.")
    lr: float = Field(0.001, gt=0, description="Learning rate of SGD.")
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of SGD; 0: none.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of SGD; 0: none.")
    crop_padding: Padding | None = Field(
        None,
        description="Pixels of padding before the random crop of the two views; 0: no crop; null: as `images` says.",
    )
    flip: bool | None = Field(None, description="Whether the two views are flipped at random; null: as `images` says.")
    resized_crop: Crop | None = Field(
        None,
        description="Area of the random resized crop of the two views, as shares of the image; [1, 1]: the whole "
        "image; null: as `images` says.",
    )
    jitter: Jitter | None = Field(
        None,
        description="Strength of brightness, contrast, saturation and hue in the two views; 0: off; "
        "null: as `images` says.",
    )
    jitter_p: Probability | None = Field(
        None, description="Probability that a view is jittered; null: as `images` says."
    )
    grayscale: Probability | None = Field(
        None, description="Probability that a view loses its colour; 0: off; null: as `images` says."
    )

    def views(self, images: ImageConfig) -> ImageConfig:
        """Return how the two views are made, from how training images are augmented."""
        own = {name: value for name in OF_VIEWS if (value := getattr(self, name)) is not None}
        return images.model_copy(update=own)

    @model_validator(mode="after")
    def _online_sees_a_batch_once(self) -> "ContrastParams":
        if self.mode == "online" and self.epochs != 1:
            raise ValueError(f"mode=online needs epochs=1, found {self.epochs}: each batch comes once")
        return self
