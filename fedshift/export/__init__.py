"""Exports the model of a run, completes it on a node, and predicts images with it."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fedshift.run import arguments
from fedshift.run.options import Bounds
from fedshift_core.limits import MOST_BATCH
from fedshift_core.paths import Named, path_text, user_path

if TYPE_CHECKING:
    from torch import Tensor

    from fedshift.export.predicting import Predicted
    from fedshift.export.saved import SavedModel


class Classifier(Protocol):
    """A model in memory (:class:`fedshift.Model`)."""

    @property
    def about(self) -> "SavedModel":
        """What it is."""

    @property
    def scores(self) -> "Callable[[Tensor], Tensor]":
        """Return the scores (B, C) of images (B, 3, H, W), 0 to 1."""


class HasModel(Protocol):
    """A run (:class:`fedshift.Run`)."""

    def model(self) -> Classifier:
        """Return its model."""


def predict(
    model: Named | HasModel | Classifier,
    files: Named | Iterable[Named],
    *,
    batch: Annotated[int | None, Bounds(1, MOST_BATCH)] = None,
    adapt: str = "",
    clean: Named | Iterable[Named] | None = None,
    split: str = "",
    in_order: bool = False,
) -> "Predicted":
    """Classify images with a trained model.

    Args:
        model: The folder of a saved model, a run (whose model is taken as :meth:`Run.model` gives it), or a module.
        files: Image files and folders of them; images of ``folder/<class>/`` are also scored (``metrics()``).
        batch: Images at a time; default: 64, with tent 128, with t3a 32.
        adapt (--adapt NAME): tent, eata (BatchNorm) or t3a (classifier): adapt a saved model to the images.
        clean (--clean DIR): Images like those of training, by which eata forgets less.
        split (--split SPLIT): test or train: of the run's data-dir, or a site in it, only these images of the run.
        in_order: Adapt to the images in their order, not in a mixed one.

    Raises:
        FedShiftError: If an argument is wrong, the model cannot be used, a path does not exist, or no image can be
            read.
    """
    given = arguments.paths(files, "predict", "image")
    batch = None if batch is None else arguments.whole("batch", batch, 1, MOST_BATCH)
    like = arguments.paths(clean, "predict", "image") if clean else ()
    opened: Any = model
    if callable(of_run := getattr(model, "model", None)):
        opened = of_run()
    elif not hasattr(model, "about"):
        expected = "the folder of a saved model, a run, or what its model() returns"
        opened = user_path(path_text(model, "predict", expected), "predict")
    from fedshift.export import predicting

    return predicting.predict(opened, given, batch=batch, adapt=adapt, clean=like, split=split, in_order=in_order)
