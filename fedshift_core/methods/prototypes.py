"""Parameters of :mod:`fedshift_clients.training.prototypes`. No torch."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from fedshift_core.params import Params

#: Where a node's prototypes come from: the trained model's features of all images, in evaluation mode and not
#: augmented; or the features seen in the last local epoch, in training mode and augmented.
ProtoSource = Annotated[
    Literal["after_training", "last_epoch"],
    Field(description="Features behind the prototypes: of a pass after training, or of the last epoch."),
]


class PrototypeParams(Params):
    """Base of the node's parameters of a method with class prototypes."""

    if TYPE_CHECKING:
        proto_source: ProtoSource  # each method declares it, in a place of its own among its parameters
