"""Parameters of :mod:`fedshift_clients.modules.within`. No torch."""

from pydantic import Field, model_validator

from fedshift_core.params import Params


class WithinDomainsParams(Params):
    """Weights of the terms; 0: the term is off."""

    coral: float = Field(0.0, ge=0, description="Weight of CORAL (DomainBed: 1).")
    mmd: float = Field(0.0, ge=0, description="Weight of MMD with Gaussian kernels (DomainBed: 1).")
    irm: float = Field(0.0, ge=0, description="Weight of IRMv1's penalty (DomainBed: 100, after 500 steps at 1, with "
                       "Adam; with SGD begin at 1).")  # fmt: skip
    rex: float = Field(0.0, ge=0, description="Weight of V-REx (DomainBed: 10, after 500 steps at 1, with Adam; "
                       "with SGD begin at 1).")  # fmt: skip

    @model_validator(mode="after")
    def _one_is_on(self) -> "WithinDomainsParams":
        if not any(self.model_dump().values()):
            raise ValueError("one weight must be above 0: coral, mmd, irm or rex; found none")
        return self
