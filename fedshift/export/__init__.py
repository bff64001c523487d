"""Exports the model of a run, completes it on a node, and predicts images with it."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from fedshift.export.forms import FORMS, Form
from fedshift.run import arguments
from fedshift.run.options import Bounds
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_BATCH, MOST_ROUNDS, WHOLE_PATH, as_found, shown
from fedshift_core.paths import Named, path_text, user_path

LIBRARIES = ("torchvision", "timm")

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
    masks: Named | None = None,
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
        masks (--masks DIR): Of a model of masks: the folder to write them to, with the images outlined.

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

    folder = None if masks is None else user_path(masks, "--masks")
    return predicting.predict(
        opened, given, batch=batch, adapt=adapt, clean=like, split=split, in_order=in_order, folder=folder
    )


def save(
    run: Named,
    *,
    format: str = "safetensors",
    node: Annotated[int | None, Bounds(0)] = None,
    output: Named | None = None,
    round: Annotated[int | None, Bounds(1, MOST_ROUNDS)] = None,
    shared: bool = False,
    before_adaptation: bool = False,
    to: str = "",
) -> tuple[Path, str]:
    """Save the model of a run into a folder; return the folder, and a text on it.

    Args:
        run: A run folder.
        format (--format FORMAT): safetensors, torchscript, onnx or exported (torch.export).
        node: A simulated node: its model with personal parts.
        output (--output, -o DIR): The folder to make.
        round: The model after this round, if the run keeps it.
        shared: Only the shared parts: for `fedshift save-node` on real nodes.
        before_adaptation: The model before the run adapts it for a score.
        to (--to LIBRARY): torchvision or timm: weights by the library's own names.

    Raises:
        FedShiftError: If there is no such model, the form does not support it, or the folder exists.
    """
    form, place = _form(format), None if output is None else user_path(output, "--output")
    if to and (to not in LIBRARIES or form != "safetensors"):
        allowed = f"allowed are {' and '.join(LIBRARIES)}, as safetensors"
        raise ConfigError(f"--to: {as_found(to)} with --format {form}; {allowed}")
    from fedshift.export import saving

    wanted = saving.Wanted(user_path(run), form, node, shared, before_adaptation, round, place)
    if not to:
        return _saved(*saving.save(wanted))
    from fedshift.export import library

    folder, lines = library.save(wanted, to)
    return folder, "\n".join([shown(folder, WHOLE_PATH), *lines])


def save_node(
    model: Named,
    *,
    format: str = "safetensors",
    state: Named | None = None,
    node: str = "",
    network: str = "",
    output: Named | None = None,
) -> tuple[Path, str]:
    """Put a node's personal parts onto the shared weights; return the new folder, and a text on it.

    Args:
        model: The folder that `fedshift save RUN --shared` wrote.
        format (--format FORMAT): safetensors, torchscript, onnx or exported (torch.export).
        state (--state DIR): The folder of the node's personal parts; default: $FEDSHIFT_STATE.
        node (--node NAME): The node's folder there, such as node-0, if several are here.
        network (--network NAME): The network, if the SuperNode was started with model=NAME.
        output (--output, -o DIR): The folder to make.

    Raises:
        FedShiftError: If the shared weights are none, the node has kept nothing of their run, or the two do not fit.
    """
    form, places = _form(format), {"state": state, "output": output}
    given = {key: None if path is None else user_path(path, f"--{key}") for key, path in places.items()}
    from fedshift.export import on_node

    return _saved(*on_node.save(user_path(model), form, node=node, network=network, **given))


def _form(given: str) -> Form:
    for form in FORMS:
        if given == form:
            return form
    raise ConfigError(f"--format: {as_found(given)} is unknown; there are {', '.join(FORMS)}")


def _saved(folder: Path, model: "SavedModel") -> tuple[Path, str]:
    return folder, f"saved: {shown(folder, WHOLE_PATH)} ({model.file}, SHA-256 {model.sha256})"
