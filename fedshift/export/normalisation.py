"""Mean and standard deviation inside a saved model, where each node goes by its own (``images.normalization``)."""

import numpy as np

from fedshift_app.config.sections import RunConfig
from fedshift_app.features.normalization.node import normalising, of_rows
from fedshift_app.features.statistics.server import federation_images
from fedshift_app.run.checkpoints import Checkpoint
from fedshift_core.errors import ConfigError
from fedshift_strategies.federation.roster import Node


def normalised(config: RunConfig, checkpoint: Checkpoint, node: Node | None) -> RunConfig:
    """Return the configuration with mean and deviation by which the model's images are normalised.

    Raises:
        ConfigError: If they are a node's own, and none is chosen or it reports none.
    """
    way = config.images.normalization
    if way == "fixed":
        return config
    if node is None:
        raise ConfigError(
            f"save: images.normalization={way}: each node's images go by its own mean",
            remedy="fedshift save RUN --node N saves the model with that of one node",
        )
    of_all = federation_images(checkpoint.moments, config.dataset.domains)
    row = None if of_all is None else of_all.row_of(node.index)
    if of_all is None or row is None:
        raise ConfigError(f"save: images.normalization={way}: {node} reports no statistics of its images")
    mean, std = normalising(of_rows(of_all, np.array([row]), way), of_all, config.images)
    fixed = {
        "mean": tuple(mean.tolist()),
        "std": tuple(std.tolist()),
        "normalization": "fixed",
        "normalization_draw": "image",
    }
    return config.model_copy(update={"images": config.images.model_copy(update=fixed)})
