"""What goes with losses and samples for classes of unequal numbers of images (keys of the section ``train``)."""

from fedshift_app.config import registry
from fedshift_app.config.error_location import at
from fedshift_app.config.sections import RunConfig
from fedshift_clients.modules.catalog import MODULES
from fedshift_clients.training.settings import TrainConfig
from fedshift_core.errors import ConfigError
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import as_found, some
from fedshift_core.registry import Method, imported
from fedshift_core.spelling import meant

MOST_NAMED = 20  # classes that a message names


def check_keys(config: RunConfig) -> None:
    """Refuse keys that contradict each other, and weights of classes that the run has not.

    Raises:
        ConfigError: With the key.
    """
    train, default = config.train, TrainConfig.model_fields
    if isinstance(train.class_weights, FrozenDict):
        classes = config.dataset.known().classes
        if unknown := [name for name in train.class_weights if name not in classes]:
            with at("train", "class_weights"):
                raise ConfigError(
                    f"train.class_weights: {as_found(unknown[0])} is no class of this run; there are "
                    f"{some(classes, MOST_NAMED)}{meant(unknown[0], classes)}"
                )
    if train.class_counts != "node" and not train.counts_classes:
        raise ConfigError(
            f"train.class_counts={train.class_counts} needs train.class_weights=balanced or effective, found "
            f"{as_found(train.class_weights)}"
        )
    if train.class_beta != default["class_beta"].default and train.class_weights != "effective":
        raise ConfigError(
            f"train.class_beta={train.class_beta:g} needs train.class_weights=effective, found "
            f"{as_found(train.class_weights)}"
        )
    if train.focal_gamma != default["focal_gamma"].default and train.loss != "focal":
        raise ConfigError(f"train.focal_gamma={train.focal_gamma:g} needs train.loss=focal, found {train.loss}")


def weighing_key(train: TrainConfig) -> str:
    """Return the key by which the loss differs from cross-entropy, with its value; empty where it does not."""
    if train.class_weights != "none":
        return f"train.class_weights={as_found(train.class_weights)}"
    return "train.loss=focal" if train.loss == "focal" else ""


def check_run(config: RunConfig, method: Method) -> None:
    """Refuse methods and modules whose losses would not follow these keys, and private training of a drawn sample.

    Raises:
        ConfigError: With the key and what is allowed.
    """
    key, drawn = weighing_key(config.train), config.train.sampler != "shuffle"
    if key and not method.client_class().can_weigh_classes():
        able = [other.name for other in registry.listed() if other.client_class().can_weigh_classes()]
        raise ConfigError(
            f"{key}: the method {method.name!r} has a loss of its own that does not weigh classes; it goes with "
            f"{', '.join(able)}, and with a method whose losses call self.cross_entropy"
        )
    for name in (str(entry["name"]) for entry in config.modules if key):
        if not imported(MODULES[name].modules).can_weigh_classes():
            raise ConfigError(f"{key}: the modules {name!r} have losses of their own that do not weigh classes")
    if drawn and config.privacy.of_images:
        raise ConfigError(
            f"train.sampler={config.train.sampler} does not go with privacy.name=dp-sgd, whose steps take each image "
            "with the same probability; allowed is train.sampler=shuffle, and train.class_weights"
        )
