"""The section ``privacy``: its keys, the methods that it fits, and the privacy that a run spends.

Local differential privacy: before its weights leave a node, their update is clipped and noise is added
(``node/noise.py``). The server is not trusted with the update, and later processing of it spends nothing more.

The unit is a node: two neighbouring federations differ in all training images of one node, whose number per class
is known. Two updates of norm C at most are at most 2C apart, which is the sensitivity.

Noise: Dwork & Roth, "The Algorithmic Foundations of Differential Privacy", 2014, theorem A.1, as in Flower's mod.
Composition: Dong, Roth & Su, "Gaussian Differential Privacy", 2022, corollaries 1 and 2 (exact for the Gaussian
mechanism; Balle & Wang, 2018, theorem 8, of one round).
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

from numpy.typing import NDArray
from pydantic import BaseModel, Field

from fedshift_app.config import registry
from fedshift_core.errors import ConfigError
from fedshift_core.registry import Method
from fedshift_core.wire.names import RETAKEN
from strategies.federation.schedule import EvaluateConfig

#: Bounds of norm and epsilon, within which the noise and the spent epsilon are finite, also in float32.
SMALLEST, LARGEST = 1e-6, 1e6
SMALLEST_DELTA = 1e-30


class PrivacyConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Noise on what leaves a node."""

    name: Literal["none", "local-dp"] = Field(
        "none",
        description="Privacy mechanism: none, or local-dp, which clips each node's update and adds Gaussian noise "
        "before it leaves the node.",
    )
    clipping_norm: float = Field(
        1.0, ge=SMALLEST, le=LARGEST, description="Largest L2 norm of a node's update (C); a longer one is scaled down."
    )
    #: Above 1 :meth:`spent` gives the epsilon of one round.
    epsilon: float = Field(
        1.0,
        ge=SMALLEST,
        le=LARGEST,
        description="Epsilon of one round in the formula of the noise, sigma = 2C sqrt(2 ln(1.25 / delta)) / epsilon,"
        " which is proven up to 1.",
    )
    delta: float = Field(
        1e-5, ge=SMALLEST_DELTA, lt=1, description="Delta of one round, and of what the whole run spends."
    )

    @property
    def sensitivity(self) -> float:
        """The largest distance between a node's updates for two sets of training images."""
        return 2 * self.clipping_norm

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each weight, sigma."""
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    def spent(self, rounds: int) -> float:
        r"""Return the epsilon, at :attr:`delta`, of a node that trained in ``rounds`` rounds.

        The smallest with :math:`\Phi(\mu/2-\epsilon/\mu)-e^\epsilon\,\Phi(-\mu/2-\epsilon/\mu)\le\delta`, where
        :math:`\mu=\sqrt{\text{rounds}}\cdot 2C/\sigma`.
        """
        mu = math.sqrt(rounds) * self.sensitivity / self.noise
        low, high = 0.0, mu * mu + 10 * mu * math.sqrt(-math.log(self.delta)) + 1
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (low, middle) if _delta(mu, middle) <= self.delta else (middle, high)
        return high


def _delta(mu: float, epsilon: float) -> float:
    from scipy.special import log_ndtr  # here: it takes long to import

    first = math.exp(log_ndtr(mu / 2 - epsilon / mu))
    return first - math.exp(min(0.0, epsilon + log_ndtr(-mu / 2 - epsilon / mu)))  # above 0 by rounding only


def check_method(privacy: PrivacyConfig, method: Method, evaluate: EvaluateConfig) -> None:
    """Refuse a method or a score that would reveal a node's images without noise.

    Raises:
        ConfigError: With the alternatives.
    """
    if privacy.name == "none":
        return
    if not _sends_weights_alone(method):
        raise ConfigError(
            f"privacy.name={privacy.name} puts noise on weights only, which does not protect "
            f"{method.name!r} (which also sends: {registry.travels(method)}); it fits methods whose nodes "
            "send only weights, see: fedshift methods --privacy"
        )
    if evaluate.client_models != "off":
        raise ConfigError(
            f"privacy.name={privacy.name} needs evaluate.client_models=off, found {evaluate.client_models}: "
            "it scores a node's model before the noise"
        )
    if RETAKEN in evaluate.bn:
        raise ConfigError(
            f"privacy.name={privacy.name} needs evaluate.bn without retaken: BatchNorm statistics would leave a node "
            "without noise"
        )


def check_shared(privacy: PrivacyConfig, shared: Mapping[str, NDArray[Any]]) -> None:
    """Refuse a model that shares arrays which cannot get noise.

    Raises:
        ConfigError: If a shared array is a single number, or has no real numbers.
    """
    if privacy.name == "none":
        return
    for name, array in shared.items():
        if array.dtype.kind != "f" or array.ndim == 0:
            raise ConfigError(
                f"privacy.name={privacy.name}: {name} would travel, a single number of type {array.dtype} that cannot "
                "get noise; keep BatchNorm on the nodes (model.bn=local), or use a model without it "
                "(model.name=cnn)"
            )


def _sends_weights_alone(method: Method) -> bool:
    """Return whether the method's nodes send only weights."""
    sends_more = bool(method.strategy_class().contributes or method.numbers)
    return not sends_more and not method.client_class().heterogeneous


def summary_line(privacy: PrivacyConfig, rounds: int) -> str:
    """Return a line with the largest epsilon that a run spends."""
    return (
        f"privacy: each node's update is cut to norm {privacy.clipping_norm:g} and given noise of standard deviation "
        f"{privacy.noise:.3g}; after {rounds} rounds epsilon is {privacy.spent(rounds):.3g} at delta {privacy.delta:g}"
    )
