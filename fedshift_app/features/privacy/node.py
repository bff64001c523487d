"""Clipping and noise on what leaves a node.

``dp-sgd``: training itself is private (``fedshift_clients.training.dp_sgd``), and what is sent is what it leaves.

``local-dp``: noise on a node's update, local differential privacy as Flower's ``LocalDpMod`` defines it.

Flower's mod draws from NumPy's global generator. Processes that are forked from one another share its state, and so
two nodes would send the same noise, which does not average out. Here each update has a generator of its own.
"""

from typing import Any

import numpy as np

from fedshift_app.features.privacy import Options
from fedshift_clients.base import DomainClient
from fedshift_clients.features import Call, Next, NodeFeature, Place, Reply
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError, NotFiniteError
from fedshift_core.features import ours
from fedshift_core.limits import largest
from fedshift_core.run_settings import RunSettings
from fedshift_core.seeding import unpredictable
from fedshift_core.wire.names import EPSILON

#: What a node may contribute besides weights with ``dp-sgd``: noised by ``PrivateTraining.class_prototypes``.
RELEASED = ("prototypes", "counts")
#: Of the numbers, those that travel with a noised update: they are of features that tell nothing of images.
_SAID = tuple(key for feature in ours() for key in feature.train_reply if not feature.tells and key.name != EPSILON)


class PrivacyOnNode(NodeFeature):
    """Clips and noises what leaves a node, and lets no other number of its training out (``privacy``)."""

    place = Place.NOISE

    def attach(self, client: DomainClient[Any], config: RunSettings) -> None:
        """Let the client train privately with ``dp-sgd``."""
        if config.privacy.of_images:
            from fedshift_clients.training.dp_sgd import PrivateTraining  # here: only such a run needs it

            client.trained_by = PrivateTraining(config.privacy)

    def on_train(self, call: Call, next: Next) -> Reply:
        """Return the reply without its losses: with ``local-dp`` its weights are clipped and noised.

        With ``dp-sgd`` it says the epsilon that the node has spent by now, as if it had trained in all rounds.

        The noise comes from the system's entropy, not from the run's seed, which the server knows: such a run is not
        repeatable.

        Raises:
            FedShiftError: If the node contributes knowledge that has no noise, noise does not fit its weights, or it
                trained in other steps than are accounted for.
        """
        reply, privacy, client = next(call), call.config.privacy, call.client
        released = RELEASED if privacy.of_images else ()
        if bare := [name for name in reply.knowledge or () if name not in released]:
            raise FedShiftError(f"privacy.name={privacy.name}: {', '.join(bare)} would travel without noise")
        numbers = {name: value for name, value in reply.metrics.items() if any(key.fits(name) for key in _SAID)}
        if not privacy.of_images:
            return Reply(reply.images, numbers, noised(privacy, call.sent, reply.weights), {})
        spends = None if client.trained_by is None else client.trained_by.spending(client)
        if spends is None or client.steps != spends.steps:
            raise FedShiftError(
                f"privacy.name={privacy.name}: this node did not train privately, with train.epochs="
                f"{call.config.train.epochs} as is accounted for; nothing leaves"
            )
        numbers[EPSILON] = spends.epsilon(client.server_round)
        return Reply(reply.images, numbers, reply.weights, reply.knowledge)


def noised(privacy: Options, sent: Arrays, trained: Arrays) -> Arrays:
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
            raise NotFiniteError(
                f"{name} holds numbers that are not finite: training diverged, on weights that carry noise of "
                f"deviation {privacy.noise:.3g} from round 2 on (privacy.name=local-dp; a larger privacy.epsilon or "
                "a smaller privacy.clipping_norm makes it smaller; or try a lower train.lr)"
            )
    squares = (float(np.square(update, dtype=np.float64).sum()) for update in updates.values())
    norm = float(np.sqrt(sum(squares)))
    factor = privacy.clipping_norm / norm if norm > privacy.clipping_norm else 1.0  # a norm of 0 stays as it is
    rng = unpredictable()
    for name, update in updates.items():
        clipped = sent[name] + update * factor
        updates[name] = clipped + rng.normal(0.0, privacy.noise, clipped.shape).astype(clipped.dtype)
    return updates
