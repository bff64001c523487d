"""Opens a saved model as a function from images (B, 3, H, W), 0 to 1, to scores (B, C)."""

from pathlib import Path

import torch
from torch import Tensor

from fedshift.export import programs, saved, scorer
from fedshift.export.programs import Program
from fedshift.export.saved import SavedModel
from fedshift.export.scorer import Scorer
from fedshift_app.config import validating
from fedshift_app.config.sections import RunConfig
from fedshift_clients.training import precision
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown


def configuration_of(model: SavedModel, folder: Path) -> RunConfig:
    """Return the checked configuration of a model that is saved as weights.

    Raises:
        ConfigError: If it is invalid, names local files, or does not match ``model.json``.
    """
    if model.configuration.get("plugins"):
        raise ConfigError(f"{shown(folder)}: configuration.plugins: a saved model does not run files")
    try:
        config = validating.validate(validating.sections_of_run({"resolved": dict(model.configuration)}))
    except ConfigError as error:
        raise error.under(f"{shown(folder)}: configuration") from None
    for key, value in scorer.facts_of(config).items():
        if getattr(model, key) != value:
            raise ConfigError(f"{shown(folder)}: {key} contradicts its configuration")
    return config


def scorer_of(model: SavedModel, file: Path) -> Scorer:
    """Build the network of a model that is saved as weights, on the device of this machine.

    Raises:
        FedShiftError: If the weights are not the network's.
    """
    config = configuration_of(model, file.parent)
    return scorer.rebuilt(config, saved.weights_of(file), f"{shown(file)}:").to(precision.default_device())


def program_of(model: SavedModel, file: Path) -> Program:
    """Return the function that gives the scores of a saved model.

    Raises:
        FedShiftError: If it is incomplete, or its file does not match ``model.json``.
    """
    if model.parts == "shared":
        raise ConfigError(
            f"{shown(file.parent)} is not complete: the personal parts are on the nodes (fedshift save-node adds them)"
        )
    if model.form != "safetensors":
        return programs.opened(file, model.form)
    return program_from(scorer_of(model, file))


def program_from(built: Scorer) -> Program:
    """Return the function that gives the scores of a network, wherever the images are."""
    device = built.get_buffer("mean").device

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode():
            scores: Tensor = built(images.to(device))
        return scores.cpu()

    return run
