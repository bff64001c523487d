"""Parameters of GGEUR."""

from typing import Literal

from pydantic import Field

from fedshift_core.params import Params


class GGEURParams(Params):
    """Parameters of GGEUR."""

    samples: int = Field(2000, ge=0, le=10**6)
    """Rows of each class that a node trains on, own and drawn; 0: off."""
    pca: int = Field(0, ge=0, le=10**4)
    """Principal components of a class's covariance that travel, at most; 0: all."""
    least_images: int = Field(5, ge=2, le=10**6)
    """Least number of images of a class of which a node tells the covariance."""
    scaled: Literal["largest", "smallest"] = "largest"
    """Which eigenvalues are scaled; smallest: as the authors' code does."""
    number_scaled: int = Field(10, ge=0, le=10**4)
    """How many eigenvalues are scaled."""
    scale: float = Field(5.0, ge=1)
    """Factor of the first of them; it falls evenly to 1; 1: none is scaled."""
    redraw: bool = False
    """Whether rows are drawn anew each round; false: once, as in the code."""
