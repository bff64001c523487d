"""Parameters of GPerXAN."""

from typing import Literal

from pydantic import NonNegativeFloat

from fedshift_core.params import Params


class GPerXANParams(Params):
    """Parameters of gPerXAN; values are the code's."""

    lambda_guide: NonNegativeFloat = 0.5
    """Weight of the received head's loss; 0: off."""
    batch_norm: Literal["own", "averaged"] = "own"
    """BatchNorm that nodes are scored with: their own, which never leaves them, or the average of all, for which it is
    sent (code); each node trains with its own.
    """
