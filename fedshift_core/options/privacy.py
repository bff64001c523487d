"""The section ``privacy``: noise on what leaves a node, and what a run spends of it.

The unit is a node: two neighbouring federations differ in all training images of one node, of which the number per
class is known. Any two updates of norm C at most are 2C apart, which is the sensitivity.

Noise: Dwork & Roth, "The Algorithmic Foundations of Differential Privacy", 2014, theorem A.1, as in Flower's mod.
Composition: Dong, Roth & Su, "Gaussian Differential Privacy", 2022, corollaries 1 and 2 (exact for the Gaussian
mechanism; Balle & Wang, 2018, theorem 8, of one round).
"""

import math
from typing import Literal

from pydantic import BaseModel, Field

#: Of norm and epsilon. Within these bounds the noise, and what a run spends, are finite numbers, also in float32.
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
    #: Above 1 :meth:`spent` says what one round spends.
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
        """How far apart the updates of a node can be for two sets of training images."""
        return 2 * self.clipping_norm

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each weight, sigma."""
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    def spent(self, rounds: int) -> float:
        r"""Return the epsilon, at :attr:`delta`, of a node that trained in so many rounds.

        The smallest with :math:`\Phi(\mu/2-\epsilon/\mu)-e^\epsilon\,\Phi(-\mu/2-\epsilon/\mu)\le\delta`, where
        :math:`\mu=\sqrt{\text{rounds}}\cdot 2C/\sigma`.
        """
        return epsilon_of(math.sqrt(rounds) * self.sensitivity / self.noise, self.delta)

    @property
    def mu_squared(self) -> float:
        r"""What one round spends in Gaussian differential privacy: the square of :math:`2C/\sigma`. Rounds add up."""
        return (self.sensitivity / self.noise) ** 2


def epsilon_of(mu: float, delta: float) -> float:
    r"""Return the smallest epsilon, at ``delta``, of what is :math:`\mu` Gaussian differentially private."""
    low, high = 0.0, mu * mu + 10 * mu * math.sqrt(-math.log(delta)) + 1
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if _delta(mu, middle) <= delta else (middle, high)
    return high


def _delta(mu: float, epsilon: float) -> float:
    from scipy.special import log_ndtr  # here: it takes long to import

    first = math.exp(log_ndtr(mu / 2 - epsilon / mu))
    return first - math.exp(min(0.0, epsilon + log_ndtr(-mu / 2 - epsilon / mu)))  # above 0 by rounding only
