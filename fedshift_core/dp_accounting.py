"""What ``privacy.name=dp-sgd`` spends on a node, and the noise that a target allows.

The unit is one image of one node: two neighbouring federations differ in that one node has one training image more. The
numbers of images of each class, which nodes announce, are not protected.

DP-SGD: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, algorithm 1. Each step takes each of a node's
n images with probability q = batch size / n and releases the sum of their clipped gradients with Gaussian noise.
Accounting: Renyi differential privacy of the Poisson-sampled Gaussian mechanism (Mironov, Talwar & Zhang, 2019), by
Google's ``dp-accounting``, which Flower 1.42 wraps as ``flwr.serverapp.RdpAccountant``. Of prototypes, one further
Gaussian release a round over all images.

A node is taken to train in each round so far. Where it does not, its epsilon is smaller than what is said.
"""

import functools
import importlib.util
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedshift_core import log_levels
from fedshift_core.errors import ConfigError
from fedshift_core.plural import plural
from fedshift_core.run_settings import WithRooms

#: Orders of Renyi divergence: the smallest epsilon over them counts. More orders hardly lower it and take longer.
ORDERS = (
    1.25,
    1.5,
    1.75,
    2.25,
    2.5,
    2.75,
    3.5,
    4.5,
    5.5,
    6.5,
    7.5,
    8.5,
    *range(2, 65),
    80,
    96,
    128,
    192,
    256,
    512,
    1024,
)
PRECISION = 1.002  # a found noise multiplier is at most this factor above the smallest that fits
LEAST_NOISE = 0.01  # less is not looked for
LARGEST = 1e6  # noise multiplier, norm and epsilon: the noise is a finite number, also in float32
NEEDED = ("dp_accounting", "opacus")
EXTRA = 'pip install "fedshift[dp]"'


@dataclass(frozen=True)
class Spending:
    """What a node's rounds spend.

    Attributes:
        images: Training images of the node, n.
        sampling_rate: Probability with which a step takes an image, q.
        steps: Steps of a round.
        noise_multiplier: Standard deviation of the noise of a step, in multiples of the clipping norm, z.
        prototype_noise: Likewise of a round's class prototypes, in multiples of their sensitivity; 0: none are sent.
        delta: Of the whole run.
    """

    images: int
    sampling_rate: float
    steps: int
    noise_multiplier: float
    prototype_noise: float
    delta: float

    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of so many rounds, all of which the node trained in; of none it is 0."""
        return _composed(tuple(_parts(self, rounds)), self.delta) if rounds else 0.0


def epsilon_of_all(spent: Sequence[tuple[Spending, int]], mu_squared: float, delta: float) -> float:
    """Return the epsilon of rounds of several runs together, at ``delta``.

    Args:
        spent: What rounds spend, and how many there were.
        mu_squared: What noised updates spent besides (``local-dp``), whose square of mu adds up: a Gaussian mechanism
            of a node's images, and so of each of them.
        delta: Delta.
    """
    parts = [part for spends, rounds in spent for part in _parts(spends, rounds)]
    parts += [(1.0, mu_squared**-0.5, 1)] if mu_squared > 0 else []
    return _composed(tuple(parts), delta)


def _parts(spends: Spending, rounds: int) -> list[tuple[float, float, int]]:
    """Return the Gaussian mechanisms of rounds: sampling rate, noise multiplier and how often."""
    steps = (spends.sampling_rate, spends.noise_multiplier, spends.steps * rounds)
    return [steps, *([(1.0, spends.prototype_noise, rounds)] if spends.prototype_noise else [])]


@functools.lru_cache(maxsize=4096)
def _composed(parts: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Return the epsilon of Gaussian mechanisms, of which one with rate 1 is of all images."""
    check_installed()
    from dp_accounting import dp_event, rdp  # here: they import scipy

    accountant = rdp.RdpAccountant(ORDERS)
    # Nothing is said of an order that is left out because its series does not converge: the others bound epsilon too.
    with log_levels.at_least(logging.ERROR, "absl"):
        for rate, noise, times in parts:
            event = dp_event.GaussianDpEvent(noise)
            accountant.compose(dp_event.PoissonSampledDpEvent(rate, event) if rate < 1 else event, times)
        return float(accountant.get_epsilon(delta))


def check_installed() -> None:
    """Refuse to begin without the packages of ``dp-sgd``.

    Raises:
        ConfigError: With how to install them.
    """
    for package in NEEDED:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"privacy.name=dp-sgd needs {package}, which is not here: {EXTRA}")


def spending(
    privacy: WithRooms, images: int, batch_size: int, epochs: int, rounds: int, *, prototypes: bool
) -> Spending:
    """Return what a node spends, with the noise that the configuration says or allows.

    Args:
        privacy: The section ``privacy``, with ``dp-sgd``.
        images: Training images of the node.
        batch_size: Images that a step takes on average; with fewer images all of them.
        epochs: Local epochs of a round; one has as many steps as batches would have without sampling.
        rounds: Rounds of the run, all of which the target is for.
        prototypes: Whether the node sends class prototypes.

    Raises:
        ConfigError: If delta is too large for so few images, or no noise meets the target.
    """
    if privacy.delta * images >= 1:
        raise ConfigError(
            f"privacy.delta={privacy.delta:g} protects nothing on a node of {plural(images, 'image')}; allowed "
            f"is below 1 / {images} = {1 / images:.3g}"
        )
    rate, steps = min(1.0, batch_size / images), epochs * -(-images // batch_size)
    ratio = privacy.prototype_noise if prototypes else 0.0
    noise = privacy.noise_multiplier
    if noise is None:
        assert privacy.target_epsilon is not None
        planned = max(rounds, 1)  # a run may only score
        noise = noise_for(privacy.target_epsilon, rate, steps * planned, planned, ratio, privacy.delta)
    return Spending(images, rate, steps, noise, ratio * noise, privacy.delta)


@functools.lru_cache(maxsize=1024)
def noise_for(target: float, rate: float, steps: int, rounds: int, ratio: float, delta: float) -> float:
    """Return the smallest noise multiplier whose epsilon is at most ``target``, and at most ``PRECISION`` above it.

    Args:
        target: The largest epsilon.
        rate: Sampling rate of a step.
        steps: Steps of the run.
        rounds: Rounds of the run, each with one release of prototypes.
        ratio: Noise multiplier of the prototypes in multiples of the other; 0: none are sent.
        delta: Delta.

    Raises:
        ConfigError: If even the most noise spends more.
    """

    def spends(noise: float) -> float:
        releases = [(1.0, ratio * noise, rounds)] if ratio else []
        return _composed(((rate, noise, steps), *releases), delta)

    from scipy.optimize import brentq  # here: it takes long to import

    low, high = 1.0, 1.0
    while spends(high) > target:
        low, high = high, 4 * high
        if high > LARGEST:
            raise ConfigError(f"privacy.target_epsilon={target:g} is too small: no noise meets it at delta={delta:g}")
    while spends(low) <= target:
        low, high = low / 2, low
        if low < LEAST_NOISE:
            return high
    # Epsilon is about a power of the noise: in logarithms the root is found in a few steps.
    step = math.log(PRECISION) / 4
    found = brentq(lambda log: math.log(spends(math.exp(log)) / target), math.log(low), math.log(high), xtol=step)
    noise = math.exp(found)
    while spends(noise) > target:
        noise *= math.exp(step)
    return noise
