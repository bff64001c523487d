"""A step of the server after the average (``server.optimizer``)."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from fedshift_core.features import Feature, FeatureOptions, Need
from fedshift_core.params import For, Fraction

_OPTIMIZERS = ("fedavgm", "fedadam", "fedyogi", "fedadagrad")


class Options(FeatureOptions):
    """Keys of the server optimizer, with Flower's values, but for ``momentum``: 0 there is FedAvg."""

    section = "server"
    optimizer: Literal["none", "fedavgm", "fedadam", "fedyogi", "fedadagrad"] = "none"
    """Server optimizer by the rules of Flower's strategies, for methods that keep the default merge; none: the average
    is sent.
    """
    lr: Annotated[float | None, For("optimizer", *_OPTIMIZERS)] = Field(None, gt=0)
    """Learning rate of the server; null: 1 for fedavgm, 0.1 for fedadam and fedadagrad, 0.01 for fedyogi."""
    momentum: Annotated[Fraction, For("optimizer", "fedavgm")] = 0.9
    """Momentum of fedavgm; 0: none."""
    beta1: Annotated[Fraction, For("optimizer", "fedadam", "fedyogi")] = 0.9
    """Decay of the first moment of fedadam and fedyogi."""
    beta2: Annotated[Fraction, For("optimizer", "fedadam", "fedyogi")] = 0.99
    """Decay of the second moment of fedadam and fedyogi."""
    tau: Annotated[PositiveFloat, For("optimizer", *_OPTIMIZERS[1:])] = 1e-3
    """Constant added to the root of the second moment in all but fedavgm."""

    @property
    def rate(self) -> float:
        """The server's learning rate; 1 where there is no optimiser."""
        usual = {"none": 1.0, "fedavgm": 1.0, "fedadam": 0.1, "fedyogi": 0.01, "fedadagrad": 0.1}
        return usual[self.optimizer] if self.lr is None else self.lr

    @property
    def moments(self) -> int:
        """Arrays as large as the weights that the server keeps: their number."""
        if self.optimizer == "fedavgm":
            return int(self.momentum > 0)
        return 0 if self.optimizer == "none" else 2


FEATURE = Feature(
    "server-optimizer",
    "A step of the server after the average",
    "server.optimizer",
    "fedshift_app.features.server_optimizer.server:ServerOptimizer",
    place=75,  # around rules of the average
    options=Options,
    needs=(Need("averages"),),
)
