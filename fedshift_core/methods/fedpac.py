"""Parameters of FedPAC."""

from pydantic import Field

from fedshift_core.params import Params, Rounds


class FedPACParams(Params):
    """Parameters of FedPAC."""

    lambda_align: float = Field(1.0, ge=0)
    """Weight of the alignment of features (lambda); 0: off."""
    combine_heads: bool = True
    """Whether the server combines the heads; false: each head stays on its node."""
    head_epochs: Rounds = 1
    """Epochs of the head alone, before `train.epochs` of the body."""
    head_lr: float = Field(0.1, gt=0)
    """Learning rate of the epochs of the head alone."""
