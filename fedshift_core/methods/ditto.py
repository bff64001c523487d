"""Parameters of Ditto."""

from pydantic import NonNegativeFloat, PositiveFloat

from fedshift_core.params import Params, Rounds


class DittoParams(Params):
    """Parameters of Ditto."""

    lambda_prox: NonNegativeFloat = 1.0
    """Weight of the proximal term of the personal model (lambda); 0: each node trains its own alone."""
    personal_epochs: Rounds | None = None
    """Epochs of the personal model (s counts its steps); null: train.epochs."""
    personal_lr: PositiveFloat | None = None
    """Learning rate of the personal model; null: train.lr."""
