"""Parameters of :mod:`fedshift_clients.modules.at_stages`. No torch."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedshift_core.params import Params

#: ``lower``: all before the last, three at most; ``all``; or numbers of stages.
Where = Literal["lower", "all"] | tuple[Annotated[int, Field(ge=1)], ...]


class StageParams(Params):
    """Parameters of all modules of this kind."""

    probability: float = Field(0.5, ge=0, le=1, description="Probability with which a map changes; 0: off.")
    stages: Where = Field("all", description="Stages whose maps change, counted from 1; all, or all before the last.")

    @field_validator("stages")
    @classmethod
    def _different_stages(cls, stages: Where) -> Where:
        if isinstance(stages, str):
            return stages
        if not stages or len(set(stages)) != len(stages):
            raise ValueError(f"expected 'lower', 'all' or different numbers of stages from 1, found {list(stages)}")
        return tuple(sorted(stages))
