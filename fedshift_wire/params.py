"""Base of what a configuration says of a method, of modules, of an adaptation."""

from pydantic import BaseModel, ConfigDict


class Params(BaseModel):
    """Base of the parameters that one side of a method declares; empty for FedAvg."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
