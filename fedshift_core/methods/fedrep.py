"""Parameters of FedRep."""

from fedshift_core.params import Params, Rounds


class FedRepParams(Params):
    """Parameters of FedRep."""

    personal_head: bool = True
    """Whether the head stays on the node; false: it is averaged with the body."""
    by_turns: bool = True
    """Whether the head trains first and then the body; false: both at once for train.epochs (with a personal head:
    FedPer).
    """
    head_epochs: Rounds | None = None
    """Epochs of the head; null: train.epochs less those of the body, at least one."""
    body_epochs: Rounds = 1
    """Epochs of the body; with head_epochs=null at most train.epochs less one, at least one."""
