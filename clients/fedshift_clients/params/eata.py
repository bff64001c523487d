"""Parameters of :mod:`fedshift_clients.adapt.eata`. No torch."""

from pydantic import Field

from fedshift_clients.params.stream import StreamParams
from fedshift_core.params import BatchSize

BATCH = 64  # as in the code


class EATAParams(StreamParams):
    """Parameters of EATA; the defaults are the paper's for CIFAR-10, ten classes. Its code's are for ImageNet."""

    batch_size: BatchSize = Field(BATCH, description="Test images in a batch.")
    lr: float = Field(0.005, gt=0, description="Learning rate of SGD: 0.005 for CIFAR-10, 0.00025 for ImageNet.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of SGD; 0: none.")
    #: 0.4 ln 1000 is more than ten classes can have: all are sure.
    margin: float | None = Field(
        None,
        gt=0,
        description="Largest entropy in nats of an image that is learned from (E_0); null: 0.4 ln C for C classes; "
        "FedICON takes 0.4 ln 1000.",
    )
    redundancy: float = Field(
        0.4,
        gt=0,
        le=1,
        description="Largest cosine with the mean prediction of an image that is learned from (epsilon, Eq. 5): 0.4 "
        "for ten classes, 0.05 for 1,000.",
    )
    fisher_alpha: float = Field(
        1.0, ge=0, description="Weight of the Fisher regulariser (beta): 1 for CIFAR-10, 2,000 for ImageNet; 0: off."
    )
    fisher_samples: int = Field(
        2000, ge=1, le=1_000_000, description="Largest number of the node's training images behind the Fisher values."
    )
