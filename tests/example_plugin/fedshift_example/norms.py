"""What both sides of the feature ``weight-norms`` know."""

from pydantic import Field

from fedshift_core.params import Params

NORM = "weight-norm"  # its name on the wire


class WeightNormsParams(Params):
    begins: str = Field("", description="Beginning of the names of the weights that count; empty: all.")
