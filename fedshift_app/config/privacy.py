"""The section ``privacy``: what it may say, which methods it fits, and what a run spends of it.

Local differential privacy: before its weights leave a node, their update is clipped and noise is added
(``noising.py``). The server is not trusted with the update, and nothing that is made of it afterwards spends more.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from fedshift_app.config import registry
from fedshift_core.errors import ConfigError
from fedshift_core.features import FEATURES
from fedshift_core.options.privacy import PrivacyConfig
from fedshift_core.options.scoring import EvaluateConfig
from fedshift_core.registry import Method
from fedshift_core.wire.names import RETAKEN


def check_method(privacy: PrivacyConfig, method: Method, evaluate: EvaluateConfig) -> None:
    """Refuse a method or a way to score that would let a node's images out beside the noise.

    Raises:
        ConfigError: With what there is instead.
    """
    if privacy.name == "none":
        return
    if not _sends_weights_alone(method):
        raise ConfigError(
            f"privacy.name={privacy.name} puts noise on weights and on nothing else, which does not do for "
            f"{method.name!r} (what travels besides them: {registry.travels(method)}); it fits methods whose nodes "
            "send weights alone, see: fedshift methods --privacy"
        )
    if evaluate.client_models != "off":
        raise ConfigError(
            f"privacy.name={privacy.name} needs evaluate.client_models=off, found {evaluate.client_models}: "
            "it scores a node's model as it is before the noise"
        )
    if RETAKEN in evaluate.bn:
        raise ConfigError(
            f"privacy.name={privacy.name} needs evaluate.bn without retaken: BatchNorm's statistics would leave a node "
            "without noise"
        )


def check_features(privacy: PrivacyConfig, features: Sequence[Mapping[str, Any]]) -> None:
    """Refuse features of other packages that tell of a node's images.

    Raises:
        ConfigError: With what they tell.
    """
    for name in (str(entry["name"]) for entry in features if privacy.name != "none"):
        if tells := FEATURES[name].tells:
            raise ConfigError(
                f"privacy.name={privacy.name} needs features without {name}: it sends {tells}, without noise"
            )


def check_shared(privacy: PrivacyConfig, shared: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a model that shares arrays which noise does not fit.

    Raises:
        ConfigError: If there is something else than vectors, matrices, ... of real numbers.
    """
    if privacy.name == "none":
        return
    for name, array in shared.items():
        if array.dtype.kind != "f" or array.ndim == 0:
            raise ConfigError(
                f"privacy.name={privacy.name}: {name} would travel, a single number of type {array.dtype} that can be "
                "given no noise; keep BatchNorm on the nodes (model.bn=local), or take a model without it "
                "(model.name=cnn)"
            )


def _sends_weights_alone(method: Method) -> bool:
    """Tell whether the server takes weights from the method's nodes, and nothing else."""
    more = bool(method.strategy_class().contributes or method.numbers)
    return not more and not method.client_class().heterogeneous


def told(privacy: PrivacyConfig, rounds: int) -> str:
    """Return what a run spends at most, in a line for the screen."""
    return (
        f"privacy: each node's update is cut to norm {privacy.clipping_norm:g} and given noise of standard deviation "
        f"{privacy.noise:.3g}; after {rounds} rounds epsilon is {privacy.spent(rounds):.3g} at delta {privacy.delta:g}"
    )
