"""Parameters of Scaffold."""

from typing import Literal

from fedshift_core.params import Params


class ScaffoldParams(Params):
    """Parameters of SCAFFOLD."""

    control: bool = True
    """Whether control variates are used; false: FedAvg."""
    option: Literal["I", "II"] = "II"
    """Option of the paper by which a node renews its control variate."""
