"""Parameters of :mod:`fedshift_clients.adapt.stream`. No torch."""

from typing import Literal

from pydantic import Field

from fedshift_core.params import BatchSize, Params, Rounds


class StreamParams(Params):
    """What all of them have."""

    batch_size: BatchSize = Field(64, description="Test images in a batch.")
    order: Literal["test", "shuffled"] = Field(
        "shuffled",
        description="Order of the test images: shuffled drawn for node and round, test as the test set has them, which"
        " may be class by class.",
    )
    ft_epochs: Rounds | None = Field(
        None,
        description="Local epochs that train the received model before it adapts, unless local training has just left"
        " it; null: none.",
    )
