"""Local training in parts."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from fedshift_clients.training.batches import Batch
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import as_found
from fedshift_core.wire.names import WORK
from fedshift_datasets.base import ImageSet

# The parts of a node's time: reading, augmenting and normalising images; loss, gradients, optimiser step; what a method
# does before and after local training; arrays to and from records and the model, setting up the client; evaluation.
DATA, TRAINING, PROTOTYPES, MESSAGES, EVALUATION = WORK
Loss = Callable[[Batch], dict[str, Tensor]]


@dataclass(frozen=True)
class Phase:
    """A part of a node's local round; epochs are counted on from phase to phase.

    Attributes:
        epochs: Local epochs.
        trains: Starts of the names of the parameters that learn, such as ``("classifier.",)``; None for all.
        freezes: Starts of the names of those that do not. BatchNorm of what does not learn still takes statistics,
            unless a method puts it in evaluation mode (``start_epoch``).
        lr: Learning rate in place of ``train.lr``; the decay and the schedule of the configuration apply to it too.
        views: Augmented views of an image: 1 or 2, 0 for the image as it is; None for ``images.views``.
        loss: In place of the method's ``loss``.
        fresh: The optimiser starts without the momentum of the phase before.
        images: In place of the node's own training images, such as those of the public set; the loss gets their labels.
        batch_size: In place of ``train.batch_size``.
        classes: Whether the labels of its images are classes; where not, modules add no terms.
        samples: How many samples an epoch has, where the method makes them itself; for estimates. None: its images.
    """

    epochs: int
    trains: tuple[str, ...] | None = None
    freezes: tuple[str, ...] = ()
    lr: float | None = None
    views: Literal[0, 1, 2] | None = None
    loss: Loss | None = None
    fresh: bool = False
    images: ImageSet | None = None
    batch_size: int | None = None
    classes: bool = True
    samples: int | None = None

    def check(self, names: Collection[str]) -> None:
        """Refuse starts of names that no parameter of a model has.

        Args:
            names: Those of the model's parameters.

        Raises:
            FedShiftError: With the start.
        """
        for key, starts in (("trains", self.trains), ("freezes", self.freezes)):
            for start in (starts,) if isinstance(starts, str) else starts or ():
                if not any(name.startswith(start) for name in names):
                    parts = ", ".join(dict.fromkeys(f"{name.partition('.')[0]}." for name in names))
                    raise FedShiftError(
                        f"a phase's {key}: no parameter of the model begins with {as_found(start)}; there are {parts}"
                    )

    def cut(self, epochs: int | None, most: int | None) -> "Phase":
        """Return the phase with other epochs, and with so many images of its own at most; None leaves them."""
        images = self.images
        if images is not None and most is not None and most < len(images):
            images = images.select(slice(most))
        return replace(self, epochs=self.epochs if epochs is None else epochs, images=images)

    def learns(self, name: str) -> bool:
        """Tell whether the parameter of this name learns."""
        return (self.trains is None or name.startswith(self.trains)) and not name.startswith(self.freezes)
