"""Parameters of FedTHE."""

from typing import Literal

from pydantic import Field, PositiveFloat

from fedshift_core.params import Params, Probability, Rounds, Share


class FedTHEParams(Params):
    """Parameters of FedTHE."""

    personal_head: bool = True
    """Whether there is a personal head; false: none, and no interpolation."""
    balanced: bool = True
    """Whether body and global head use the balanced loss; false: plain cross-entropy."""
    personal_epochs: Rounds = 1
    """Epochs of the personal head, before those of body and global head."""
    alpha: Share = 0.1
    """Weight of a test image in the moving average of features."""
    beta: Probability = 0.1
    """Share of the image's own feature in what is compared with z^g and z^p."""
    steps: int = Field(20, ge=0, le=1000)
    """Steps of Adam for the interpolation e; 0: both heads count the same."""
    lr_times: PositiveFloat = 10.0
    """Learning rate of Adam, in multiples of the round's rate."""
    #: The method's file has shuffled; runs from before had no such key.
    tta_order: Literal["shuffled", "test"] = "test"
    """Order of the test images: shuffled drawn for the domain, test as the test set has them, which may be class by
    class.
    """
