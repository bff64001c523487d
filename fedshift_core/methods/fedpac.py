"""Parameters of FedPAC."""

from pydantic import NonNegativeFloat, PositiveFloat

from fedshift_core.params import Params, Rounds


class FedPACParams(Params):
    """Parameters of FedPAC."""

    lambda_align: NonNegativeFloat = 1.0
    """Weight of the alignment of features (lambda); 0: off."""
    combine_heads: bool = True
    """Whether the server combines the heads; false: each head stays on its node."""
    head_epochs: Rounds = 1
    """Epochs of the head alone, before `train.epochs` of the body."""
    head_lr: PositiveFloat = 0.1
    """Learning rate of the epochs of the head alone."""
