"""Parameters of FedPAC."""

from pydantic import Field

from fedshift_core.params import Params, Rounds


class FedPACParams(Params):
    """Parameters of FedPAC."""

    lambda_align: float = Field(1.0, ge=0, description="Weight of the alignment of features (lambda); 0: off.")
    combine_heads: bool = Field(
        True, description="Whether the server combines the heads; false: each head stays on its node."
    )
    head_epochs: Rounds = Field(1, description="Epochs of the head alone, before `train.epochs` of the body.")
    head_lr: float = Field(0.1, gt=0, description="Learning rate of the epochs of the head alone.")
