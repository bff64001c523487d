"""Parameters of Scaffold."""

from typing import Literal

from pydantic import Field

from fedshift_core.params import Params


class ScaffoldParams(Params):
    """Parameters of SCAFFOLD."""

    control: bool = Field(True, description="Whether control variates are used; false: FedAvg.")
    option: Literal["I", "II"] = Field(
        "II", description="Option of the paper by which a node renews its control variate."
    )
