"""Clipping and noise on a node's update: local differential privacy, as Flower's ``LocalDpMod`` defines it.

Flower's mod draws from NumPy's global generator. Processes that are forked from one another share its state, and so
two nodes would send the same noise, which does not average out. Here each update has a generator of its own.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.features.base import NodeFeature, Reply
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.features import OURS
from fedshift_core.limits import largest
from fedshift_core.options.privacy import PrivacyConfig
from fedshift_core.options.run import RunSettings
from fedshift_core.seeding import unpredictable

#: Of the numbers, those that travel with a noised update: they are of features that tell nothing of images.
_SAID = tuple(key for feature in OURS for key in feature.train_reply if not feature.tells)


class PrivacyOnNode(NodeFeature):
    """Clips and noises the update of a node, and lets no other number of its training out (``privacy``)."""

    def protect(self, config: RunSettings, sent: Arrays, reply: Reply) -> Reply:
        """Return the reply with weights clipped and noised, and without its losses, if the run asks for it.

        The noise comes from the system's entropy, not from the run's seed, which the server knows: such a run is not
        repeatable.

        Raises:
            FedShiftError: If the node contributes knowledge, or noise does not fit its weights.
        """
        privacy = config.privacy
        if privacy.name == "none":
            return reply
        if reply.knowledge:
            raise FedShiftError(f"privacy.name={privacy.name}: {', '.join(reply.knowledge)} would travel without noise")
        said = {name: value for name, value in reply.metrics.items() if any(key.fits(name) for key in _SAID)}
        return Reply(noised(privacy, sent, reply.weights), {}, said)


def noised(privacy: PrivacyConfig, sent: Arrays, trained: Arrays) -> Arrays:
    r"""Return weights whose update is clipped to norm C and given Gaussian noise.

    .. math:: w+\min\left(1,\frac{C}{\|\Delta\|_2}\right)\Delta+\mathcal N(0,\sigma^2),\quad\Delta=w'-w

    Args:
        privacy: C and sigma.
        sent: w, as the server sent it.
        trained: w', as local training left it; the same names and shapes.

    Raises:
        FedShiftError: If the arrays do not match, are no vectors of real numbers, or the update is not finite.
    """
    if sent.keys() != trained.keys():
        raise FedShiftError(f"privacy.name={privacy.name}: what was trained is not what the server sent")
    updates: Arrays = {}
    for name, array in trained.items():
        if array.dtype.kind != "f" or array.ndim == 0:
            raise FedShiftError(f"privacy.name={privacy.name}: {name} would travel without noise")
        updates[name] = array - sent[name]
        if not np.isfinite(largest(updates[name])):
            raise FedShiftError(f"{name} holds numbers that are not finite (training diverged? try a lower train.lr)")
    squares = (float(np.square(update, dtype=np.float64).sum()) for update in updates.values())
    norm = float(np.sqrt(sum(squares)))
    factor = privacy.clipping_norm / norm if norm > privacy.clipping_norm else 1.0  # a norm of 0 stays as it is
    rng = unpredictable()
    return {name: _with_noise(sent[name] + update * factor, privacy.noise, rng) for name, update in updates.items()}


def _with_noise(array: NDArray[Any], deviation: float, rng: np.random.Generator) -> NDArray[Any]:
    noisy: NDArray[Any] = array + rng.normal(0.0, deviation, array.shape).astype(array.dtype)
    return noisy
