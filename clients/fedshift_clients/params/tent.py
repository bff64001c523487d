"""Parameters of :mod:`fedshift_clients.adapt.tent`. No torch."""

from pydantic import Field

from fedshift_clients.params.stream import StreamParams
from fedshift_core.params import BatchSize, Rounds

#: The paper's setting for all but ImageNet: Adam, batches of 128, one step a batch.
LR = 1e-3

BATCH = 128


class TentParams(StreamParams):
    """Parameters of Tent."""

    batch_size: BatchSize = Field(BATCH, description="Test images in a batch.")
    lr: float = Field(LR, gt=0, description="Learning rate of Adam.")
    steps: Rounds = Field(1, description="Steps on each batch, which the pass of the last one predicts.")
