"""Parameters of :mod:`fedshift_clients.methods.own_models`. No torch."""

from typing import TYPE_CHECKING, Literal

from fedshift_core.methods.prototypes import PrototypeParams


class OwnModelParams(PrototypeParams):
    """Base of the node's parameters of such a method."""

    if TYPE_CHECKING:  # each method declares them, in a place of its own among its parameters
        share_weights: bool
        predict_by: Literal["head", "prototype"]
