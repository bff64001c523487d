"""Clipping and noise on what leaves a node (``privacy.name``), and what a run spends of it.

With ``dp-sgd`` the unit is one image of one node (``fedshift_core.dp_accounting``). What follows is of ``local-dp``.

The unit is a node: two neighbouring federations differ in all training images of one node, of which the number per
class is known. Any two updates of norm C at most are 2C apart, which is the sensitivity.

Noise: Dwork & Roth, "The Algorithmic Foundations of Differential Privacy", 2014, theorem A.1, as in Flower's mod.
Composition: Dong, Roth & Su, "Gaussian Differential Privacy", 2022, corollaries 1 and 2 (exact for the Gaussian
mechanism; Balle & Wang, 2018, theorem 8, of one round).
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedshift_core.dp_accounting import LARGEST
from fedshift_core.errors import ConfigError
from fedshift_core.features import Case, Feature, FeatureOptions, Key, Need
from fedshift_core.params import For
from fedshift_core.wire import names as wire

#: Of norm and epsilon. Within these bounds the noise, and what a run spends, are finite numbers, also in float32.
SMALLEST = 1e-6
SMALLEST_DELTA = 1e-30


class Options(FeatureOptions):
    """Noise on what leaves a node."""

    section = "privacy"
    name: Literal["none", "local-dp", "dp-sgd"] = "none"
    """Privacy mechanism: none; local-dp, which clips each node's update and adds Gaussian noise before it leaves the
    node; or dp-sgd, which clips each image's gradient and adds noise in each step.
    """
    clipping_norm: Annotated[float, For("name", "local-dp", "dp-sgd")] = Field(1.0, ge=SMALLEST, le=LARGEST)
    """Largest L2 norm (C) of a node's update (local-dp) or of an image's gradient (dp-sgd); a longer one is scaled
    down.
    """
    #: Above 1 :meth:`spent` says what one round spends.
    epsilon: Annotated[float, For("name", "local-dp")] = Field(1.0, ge=SMALLEST, le=LARGEST)
    """Epsilon of one round of local-dp in the formula of the noise, sigma = 2C sqrt(2 ln(1.25 / delta)) / epsilon,
    which is proven up to 1.
    """
    delta: Annotated[float, For("name", "local-dp", "dp-sgd")] = Field(1e-5, ge=SMALLEST_DELTA, lt=1)
    """Delta of one round (local-dp), and of what the whole run spends; with dp-sgd below 1 / (images of a node)."""
    noise_multiplier: Annotated[float | None, For("name", "dp-sgd")] = Field(None, ge=0.01, le=LARGEST)
    """Standard deviation of dp-sgd's noise on a step's summed gradient, in multiples of C; null: found from
    `target_epsilon`.
    """
    target_epsilon: Annotated[float | None, For("name", "dp-sgd")] = Field(None, ge=0.01, le=LARGEST)
    """Epsilon that dp-sgd may spend in all rounds of the run; each node finds its own noise multiplier from it. Null:
    `noise_multiplier` says it.
    """
    prototype_clip: Annotated[float, For("name", "dp-sgd")] = Field(1.0, ge=SMALLEST, le=LARGEST)
    """Largest L2 norm of an image's feature in the class prototypes that a node sends with dp-sgd."""
    prototype_noise: Annotated[float, For("name", "dp-sgd")] = Field(1.0, ge=0.01, le=LARGEST)
    """Noise multiplier of the class prototypes with dp-sgd, in multiples of that of the gradients."""

    @model_validator(mode="after")
    def _keys_of_the_mechanism(self) -> Self:
        both = (("noise_multiplier", self.noise_multiplier), ("target_epsilon", self.target_epsilon))
        given = [f"{key}={value:g}" for key, value in both if value is not None]
        if self.name == "dp-sgd" and len(given) != 1:
            found = " and ".join(sorted(given)) or "neither"
            raise ValueError(f"name=dp-sgd takes either noise_multiplier or target_epsilon, found {found}")
        return self

    @property
    def of_images(self) -> bool:
        """Whether the noise is on the gradients of single images (dp-sgd)."""
        return self.name == "dp-sgd"

    @property
    def of_updates(self) -> bool:
        """Whether the noise is on a node's update as a whole (local-dp)."""
        return self.name == "local-dp"

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
    r"""Return the smallest epsilon, at ``delta``, of what is :math:`\mu` Gaussian differentially private; 0 for 0."""
    if mu == 0:
        return 0.0
    low, high = 0.0, mu * mu + 10 * mu * math.sqrt(-math.log(delta)) + 1
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if _delta(mu, middle) <= delta else (middle, high)
    return high


def _delta(mu: float, epsilon: float) -> float:
    from scipy.special import log_ndtr  # here: it takes long to import

    first = math.exp(log_ndtr(mu / 2 - epsilon / mu))
    return first - math.exp(min(0.0, epsilon + log_ndtr(-mu / 2 - epsilon / mu)))  # above 0 by rounding only


_DP_SGD = "privacy.name=dp-sgd"


def _rules(case: Case) -> str:
    from fedshift_app.config.needs import looks_at_images

    config = case.config
    if not Options.read(config).of_images:
        return ""
    if getattr(case.params, "proto_source", "after_training") != "after_training":
        return f"{_DP_SGD} needs method.proto_source=after_training: features of training have no noise"
    if config.modules:
        names = ", ".join(str(entry["name"]) for entry in config.modules)
        return f"{_DP_SGD} needs a model without modules, found modules: {names}"
    if reason := looks_at_images(config.adapt):
        return f"{_DP_SGD}: {reason}; allowed is adapt.name=none, or one that looks at test images alone"
    if config.train.sampler != "shuffle":
        return (
            f"train.sampler={config.train.sampler} does not go with {_DP_SGD}, whose steps take each image with the "
            "same probability; allowed is train.sampler=shuffle, and train.class_weights"
        )
    return ""


def _in_float32(config: Any) -> Any:
    """Return a configuration in float32 with ``dp-sgd``: norms in bfloat16 could exceed the bound of the noise."""
    train = config.train
    if not Options.read(config).of_images:
        return config
    if train.precision == "bf16" or (train.arithmetic and not train.arithmetic.startswith("float32")):
        found = f"train.arithmetic={train.arithmetic}" if train.arithmetic else "train.precision=bf16"
        raise ConfigError(f"{_DP_SGD} needs train.precision=float32, found {found}")
    if train.arithmetic:
        return config
    return config.model_copy(update={"train": train.model_copy(update={"precision": "float32"})})


FEATURE = Feature(
    "privacy",
    "Clipping and noise on what leaves a node",
    "privacy.name",
    "fedshift_app.features.privacy.server:Privacy",
    "fedshift_app.features.privacy.node:PrivacyOnNode",
    show="fedshift_app.features.privacy.show:show",
    place=60,
    options=Options,
    needs=(Need("weights alone", ("local-dp",)), Need("single images", ("dp-sgd",))),
    hides="without noise",
    completed=_in_float32,
    rules=_rules,
    network="fedshift_app.features.privacy.model:check_network",
    rounds_key="privacy.target_epsilon",
    train_reply=(Key(wire.EPSILON, "float", "epsilon that the node's rounds so far have spent, by their number"),),
)
