"""What a run with ``privacy.name=dp-sgd`` may be: methods, networks, number format, and what else looks at images."""

import torch

from clients.adapt.catalog import ADAPTATIONS
from clients.features.privacy import RELEASED
from clients.models.networks import SplitModel
from clients.training.per_image import check
from clients.training.settings import TrainConfig
from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_core import dp_accounting
from fedshift_core.errors import ConfigError
from fedshift_core.params import Arithmetic, Params
from fedshift_core.registry import Method, imported

NAME = "privacy.name=dp-sgd"
#: Number format and layout of such runs. Opacus 1.6 finds wrong gradients of convolutions with channels_last.
ARITHMETIC: Arithmetic = "float32/nchw"
_IMAGES = 2  # random ones, on which gradients are held against autograd's


def reason_against(method: Method) -> str:
    """Return why a method's nodes cannot train so; empty if they can."""
    client, contributed = method.client_class(), method.strategy_class().contributes
    if not client.is_per_image():
        return "its loss, or what it does with a node's images besides, is no mean of terms of one image each"
    if method.numbers:
        return f"its nodes also send numbers without noise: {method.numbers}"
    if contributed and not (client.sends_prototypes and set(contributed) == set(RELEASED)):
        return f"its nodes also send, without noise: {registry.contributed(method)}"
    return ""


def check_run(config: RunConfig, method: Method, node: Params) -> None:
    """Refuse what would use images without noise, or what no gradient of single images is known for.

    Raises:
        ConfigError: With the key and what is allowed.
    """
    if not config.privacy.of_images:
        return
    if reason := reason_against(method):
        able = [m.name for m in registry.listed() if not reason_against(m)]
        raise ConfigError(f"{NAME} does not fit {method.name!r}: {reason}; it fits {', '.join(able)}")
    if getattr(node, "proto_source", "after_training") != "after_training":
        raise ConfigError(f"{NAME} needs method.proto_source=after_training: features of training have no noise")
    if config.modules:
        names = ", ".join(str(entry["name"]) for entry in config.modules)
        raise ConfigError(f"{NAME} needs a model without modules, found modules: {names}")
    name = str(config.adapt.get("name", registry.NONE))
    if name != registry.NONE and imported(ADAPTATIONS[name].adaptation).uses_training_images:
        raise ConfigError(
            f"{NAME} does not go with adapt.name={name}: it looks at training images without noise; allowed is "
            "adapt.name=none, or one that looks at test images alone"
        )
    dp_accounting.check_installed()


def in_float32(train: TrainConfig) -> TrainConfig:
    """Return the section ``train`` in float32, with maps in the layout that Opacus reads right (``ARITHMETIC``).

    Norms in bfloat16 could exceed the bound that the noise is for.

    Raises:
        ConfigError: If the run asks for another format.
    """
    if train.precision == "bf16":
        raise ConfigError(f"{NAME} needs train.precision=auto or float32, found bf16")
    if train.arithmetic not in ("", ARITHMETIC):
        raise ConfigError(f"{NAME} needs train.arithmetic={ARITHMETIC}, found {train.arithmetic}")
    return train.model_copy(update={"precision": "auto", "arithmetic": ARITHMETIC})


def check_network(config: RunConfig, model: SplitModel, size: int) -> None:
    """Refuse a network whose images are mixed in a batch, or of which Opacus finds no gradients of single images.

    Args:
        config: The run.
        model: The network, complete, on the CPU.
        size: Height and width of its images.

    Raises:
        ConfigError: With the names of its modules.
    """
    x = torch.rand(_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))
    check(model, x, freeze_batchnorm=config.model.bn == "freeze")
