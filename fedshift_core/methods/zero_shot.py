"""Parameters of zero-shot classification."""

from pydantic import Field

from fedshift_core.params import Params


class ZeroShotParams(Params):
    """Parameters of zero-shot classification (CLIP, section 3.1.2)."""

    scale: float = Field(100.0, gt=0, le=1e4)
    """Factor of the cosines, the inverse of CLIP's temperature; it decides how sure a prediction is, not which."""
