"""Parameters of :mod:`fedshift_clients.adapt.t3a`. No torch."""

from pydantic import Field

from fedshift_clients.params.stream import StreamParams
from fedshift_core.params import BatchSize

BATCH = 32  # as in the code


class T3AParams(StreamParams):
    """Parameters of T3A."""

    batch_size: BatchSize = Field(BATCH, description="Test images in a batch.")
    supports: int | None = Field(
        50,
        ge=1,
        le=1_000_000,
        description="Largest number of supports of a class (M): the paper's choices are 1, 5, 20, 50,"
        " 100 and all; null: all.",
    )
