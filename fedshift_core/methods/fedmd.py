"""Parameters of FedMD."""

from pydantic import Field, PositiveFloat

from fedshift_core.limits import MOST_OWN, MOST_ROUNDS
from fedshift_core.params import BatchSize, Params, Rounds


class FedMDParams(Params):
    """Parameters of FedMD."""

    public_epochs: int = Field(20, ge=0, le=MOST_ROUNDS)
    """Epochs on the labels of the public set before all else; 0: none."""
    first_epochs: Rounds | None = 25
    """Epochs on the node's own images right after those on the public set; null: `train.epochs`."""
    digest_epochs: int = Field(1, ge=0, le=MOST_ROUNDS)
    """Epochs of digestion in a round; 0: nothing travels, each node trains alone."""
    digest_batch: BatchSize = 256
    """Public images in a step of digestion."""
    digest_lr: float | None = Field(None, gt=0)
    """Learning rate of digestion; null: `train.lr`."""
    #: Plain SGD needs a larger one than the authors' Adam.
    lambda_digest: PositiveFloat = 1.0
    """Factor of the mean absolute difference of the class scores."""
    public_images: int = Field(5000, ge=1, le=MOST_OWN)
    """Largest number of public images in a round."""
