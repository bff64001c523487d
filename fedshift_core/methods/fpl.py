"""Parameters of FPL."""

from pydantic import PositiveFloat

from fedshift_core.methods.prototypes import PrototypeParams


class FPLParams(PrototypeParams):
    """Parameters of FPL."""

    use_cpcl: bool = True
    """Whether the contrast with cluster prototypes is used."""
    use_upcr: bool = True
    """Whether the consistency with unbiased prototypes is used."""
    tau: PositiveFloat = 0.02
    """Temperature of the contrast."""
