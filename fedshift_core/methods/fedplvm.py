"""Parameters of FedPLVM."""

from pydantic import Field, NonNegativeFloat, PositiveFloat

from fedshift_core.params import Params, Share


class FedPLVMParams(Params):
    """Parameters of FedPLVM; values are those of its code."""

    lambda_proto: NonNegativeFloat = 100.0
    """Weight of the prototype losses (lambda); 0: FedAvg."""
    alpha: Share = 0.25
    """Exponent of the cosine in the contrast (alpha-sparsity); 1: the cosine itself."""
    tau: PositiveFloat = 0.07
    """Temperature of the contrast."""
    use_contrast: bool = True
    """Whether the term L_con is used."""
    use_correction: bool = True
    """Whether the term L_cor is used."""
    cluster_locally: bool = True
    """Whether nodes cluster the features of a class; false: one prototype of a class, its mean."""
    most_images: int = Field(5000, ge=3, le=10_000)
    """Largest number of images of a class that are compared with each other."""
    cluster_globally: bool = True
    """Whether the server clusters the prototypes; false: every prototype of every node is a global one."""
