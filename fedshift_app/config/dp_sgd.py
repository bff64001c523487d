"""What a run with ``privacy.name=dp-sgd`` may be: methods, networks, number format, and what else looks at images."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_clients.adapt.catalog import ADAPTATIONS
from fedshift_clients.training.settings import TrainConfig
from fedshift_core import dp_accounting
from fedshift_core.errors import ConfigError
from fedshift_core.params import Params
from fedshift_core.registry import Method, imported

if TYPE_CHECKING:  # torch: this module is read with each configuration
    from fedshift_clients.models.networks import SplitModel

NAME = "privacy.name=dp-sgd"
_IMAGES = 2  # random ones, on which gradients are held against autograd's


def reason_against(method: Method) -> str:
    """Return why a method's nodes cannot train so; empty if they can."""
    from fedshift_app.features.privacy.node import RELEASED

    client, contributed = method.client_class(), method.strategy_class().contributes
    if not client.is_per_image():
        return "its loss, or what it also does with a node's images, is no mean of terms of one image each"
    if method.numbers:
        return f"its nodes also send numbers without noise: {method.numbers}"
    if contributed and not (client.sends_prototypes and set(contributed) == set(RELEASED)):
        return f"its nodes also send, without noise: {registry.contributed(method)}"
    if method.defaults.get("modules"):
        return "its modules have losses and features of their own"
    return _of_adaptation(method.defaults.get("adapt", {}))


def _of_adaptation(section: Mapping[str, Any]) -> str:
    """Return why an adaptation does not go with private training; empty if it does."""
    name = str(section.get("name", registry.NONE))
    if name == registry.NONE or not imported(ADAPTATIONS[name].adaptation).uses_training_images:
        return ""
    return f"adapt.name={name} looks at training images without noise"


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
    if reason := _of_adaptation(config.adapt):
        raise ConfigError(f"{NAME}: {reason}; allowed is adapt.name=none, or one that looks at test images alone")


def in_float32(train: TrainConfig) -> TrainConfig:
    """Return the section ``train`` in float32: norms in bfloat16 could exceed the bound that the noise is for.

    Raises:
        ConfigError: If the run asks for another format.
    """
    if train.precision == "bf16" or (train.arithmetic and not train.arithmetic.startswith("float32")):
        found = f"train.arithmetic={train.arithmetic}" if train.arithmetic else "train.precision=bf16"
        raise ConfigError(f"{NAME} needs train.precision=float32, found {found}")
    return train if train.arithmetic else train.model_copy(update={"precision": "float32"})


def check_network(config: RunConfig, model: "SplitModel", size: int) -> None:
    """Refuse a network whose images are mixed in a batch, or of which Opacus finds no gradients of single images.

    Args:
        config: The run.
        model: The network, complete, on the CPU.
        size: Height and width of its images.

    Raises:
        ConfigError: With the names of its modules, or if packages are missing.
    """
    import torch

    from fedshift_clients.training.per_image import check

    dp_accounting.check_installed()  # only here: results of such runs are read without them
    x = torch.rand(_IMAGES, 3, size, size, generator=torch.Generator().manual_seed(0))
    check(model, x, freeze_batchnorm=config.model.bn == "freeze")
