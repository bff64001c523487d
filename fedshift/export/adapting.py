"""``fedshift predict --adapt``: adapts a saved model to the images during prediction."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor, nn

from fedshift.export import opening
from fedshift.export.programs import Program
from fedshift.export.saved import SavedModel
from fedshift_clients.adapt import eata, t3a, tent
from fedshift_clients.adapt.params import EATAParams, T3AParams, TentParams
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.spelling import meant

TENT, EATA, T3A = "tent", "eata", "t3a"
#: The available adaptations, with their batch sizes in a run.
BATCHES = {TENT: TentParams().batch_size, EATA: EATAParams().batch_size, T3A: T3AParams().batch_size}
OF_BATCHNORM = (TENT, EATA)
LEAST = 2  # images of a batch, if BatchNorm computes statistics from it


def check(adapt: str, clean: Sequence[Path], *, in_order: bool) -> None:
    """Refuse an unknown adaptation, clean images for an adaptation that uses none, and an order without an adaptation.

    Raises:
        ConfigError: With the available ones.
    """
    if adapt and adapt not in BATCHES:
        known = f"there are {', '.join(BATCHES)}{meant(adapt, BATCHES)}"
        raise ConfigError(f"--adapt: {as_found(adapt)} is unknown; {known}")
    if clean and adapt != EATA:
        raise ConfigError(f"--clean: images like those of training are only for --adapt {EATA}")
    if in_order and not adapt:
        raise ConfigError("--in-order: the order of the images matters only with --adapt")


def summary(adapt: str, number: int, clean: Sequence[Path], *, in_order: bool) -> str:
    """Return a line on the adaptation: what its results depend on."""
    order = "as they are listed" if in_order else "mixed, the same in each call (--in-order: as listed)"
    fisher = "" if clean or adapt != EATA else " without --clean images and so without Fisher values,"
    return f"{adapt}:{fisher} batches of {number}; results depend on the order of the images, which is {order}"


def program(model: SavedModel, file: Path, adapt: str, number: int, clean: Iterable[Tensor] | None) -> Program:
    """Return a function from images (B, 3, H, W), 0 to 1, to scores (B, C). It adapts with each batch.

    Args:
        model: The saved model.
        file: Its file.
        adapt: One of ``BATCHES``.
        number: Batch size.
        clean: Batches of images like those of training, for EATA's Fisher values; None for no such values.

    Raises:
        ConfigError: If it cannot be adapted.
    """
    why = {
        f"a program ({model.form}) cannot be adapted; save the model as safetensors": model.form != "safetensors",
        "this model is not complete": model.parts == "shared",
        f"this model was trained without BatchNorm's statistics (bn=freeze); {T3A} needs none": adapt in OF_BATCHNORM
        and model.batchnorm == "freeze",
    }
    for reason, holds in why.items():
        if holds:
            raise ConfigError(f"--adapt {adapt}: {reason}")
    built = opening.scorer_of(model, file)
    device, classifier = built.get_buffer("mean").device, built.model.classifier
    if adapt == TENT:
        run: Program = tent.Tent(built.model, built)
    elif adapt == EATA:
        moved = None if clean is None else (x.to(device) for x in clean)
        run = eata.EATA(built.model, built, EATAParams(batch_size=number), moved)
    elif isinstance(classifier, nn.Linear):
        run = t3a.T3A(classifier, built.passed, built, T3AParams().supports)
    else:
        raise ConfigError(f"--adapt {T3A} adjusts a linear classifier; this model's is {type(classifier).__name__}")

    def checked(x: Tensor) -> Tensor:
        if adapt in OF_BATCHNORM and len(x) < LEAST:
            raise ConfigError(f"--adapt {adapt} needs batches of 2 images at least: BatchNorm has no variance over one")
        return run(x.to(device)).cpu()

    return checked
