"""The section ``privacy``: the methods and models that it fits; more on ``dp-sgd`` is in ``config.dp_sgd``.

Local differential privacy: before its weights leave a node, their update is clipped and noise is added
(``fedshift_app.features.privacy.node``). The server is not trusted with the update, and later processing spends nothing
more.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from fedshift_app.config import dp_sgd, registry
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
from fedshift_core.features import FEATURES
from fedshift_core.options.privacy import PrivacyConfig
from fedshift_core.options.scoring import EvaluateConfig
from fedshift_core.registry import Method


def check_method(privacy: PrivacyConfig, method: Method, evaluate: EvaluateConfig) -> None:
    """Refuse a method or a score that would reveal a node's images without noise.

    Raises:
        ConfigError: With the alternatives.
    """
    if privacy.name == "none":
        return
    if privacy.of_updates and not sends_weights_alone(method):
        raise ConfigError(
            f"privacy.name={privacy.name} puts noise on weights only, which does not protect "
            f"{method.name!r} (which also sends: {registry.travels(method)}); it fits methods whose nodes "
            "send only weights, see: fedshift methods --privacy"
        )
    if needed := evaluate.without_noise():
        raise ConfigError(f"privacy.name={privacy.name} {needed}")


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
    """Refuse a model that shares arrays which cannot get noise.

    Raises:
        ConfigError: If a shared array is a single number, or has no real numbers.
    """
    if not privacy.of_updates:
        return
    for name, array in shared.items():
        if array.dtype.kind != "f" or array.ndim == 0:
            raise ConfigError(
                f"privacy.name={privacy.name}: {name} would travel, a single number of type {array.dtype} that cannot "
                "get noise; keep BatchNorm on the nodes (model.bn=local), or use a model without it "
                "(model.name=cnn)"
            )


def sends_weights_alone(method: Method) -> bool:
    """Return whether the method's nodes send only weights."""
    sends_more = bool(method.strategy_class().contributes or method.numbers)
    return not sends_more and not method.client_class().heterogeneous


def mechanisms(method: Method) -> tuple[str, ...]:
    """Return the values of ``privacy.name`` that fit a method."""
    fits = {"local-dp": sends_weights_alone(method), "dp-sgd": not dp_sgd.reason_against(method)}
    return tuple(name for name, does in fits.items() if does)


def markdown() -> str:
    """Return what is sent for each of FedShift's own methods in addition to weights (docs/reference/wire.md).

    What nodes send stands under the word for what it tells of their images (``fedshift_core.disclosure``). The last
    column says whether a server need know no more of it than sums over nodes (``federation.secure_sums``).
    """
    from fedshift_app.config.secure_sums import fits_with  # which reads this package

    rows = [
        (
            registry.marked(m.name), f"numbers: {m.numbers}" if m.numbers else registry.contributed(m), m.down,
            m.private,
            ", ".join(mechanisms(m)) or "-", fits_with(m),
        )
        for m in registry.listed()
        if registry.METHODS.origin(m.name) == OURS
    ]  # fmt: skip
    head = (
        "method", "a node sends in addition to weights", "it is sent in addition", "stays on the node",
        "`privacy.name`", "secure sums",
    )  # fmt: skip
    return registry.table(head, rows)
