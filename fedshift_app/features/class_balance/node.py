"""Losses for classes of unequal numbers of images (``train.class_weights``, ``train.loss``).

Numbers of images are the node's own, or with ``train.class_counts=federation`` those of all nodes. The server sends
them with each message: a score may train first. The equations are in ``fedshift_clients.losses.imbalance``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_clients.base import DomainClient
from fedshift_clients.features import Call, Next, NodeFeature, Place, Reply, Request
from fedshift_clients.losses.imbalance import class_loss
from fedshift_core.limits import LARGEST_COUNT
from fedshift_core.plural import plural
from fedshift_core.run_settings import RunSettings
from fedshift_core.wire.names import CLASS_TOTALS, DOMAINS


class ClassBalanceOnNode(NodeFeature):
    """Gives the client the loss that the section ``train`` asks for."""

    place = Place.MODEL

    def attach(self, client: DomainClient[Any], config: RunSettings) -> None:
        """Weigh classes by the node's own images, until the server says how many there are of all nodes."""
        client.class_names = config.dataset.known().classes
        weigh(client, np.bincount(client.train_set.y, minlength=len(client.class_names)))

    def refuse(self, request: Request) -> str:
        """Expect numbers of images by class where the run asks for those of all nodes, and only there."""
        if not request.config.train.asks_federation:
            return request.but(
                CLASS_TOTALS, "this run weighs no class by the images of all nodes (train.class_counts=federation)"
            )
        if CLASS_TOTALS not in request.given:
            why = f"this run has train.class_counts=federation, and the message lacks {CLASS_TOTALS}"
            return why if request.kind == "train" else request.but(DOMAINS, why) if request.scores else ""
        classes, value = len(request.config.dataset.known().classes), request.given[CLASS_TOTALS]
        if isinstance(value, list) and len(value) == classes and all(map(_is_number, value)):
            return ""
        each = plural(classes, "class", "classes")
        return request.but(CLASS_TOTALS, f"it is one number from 0 to {LARGEST_COUNT} for each of {each}")

    def on_train(self, call: Call, next: Next) -> Reply:
        """Weigh classes by the images of all nodes; also where something trains before a score."""
        if CLASS_TOTALS in call.options:
            weigh(call.client, call.options[CLASS_TOTALS])
        return next(call)

    on_scores = on_train


def weigh(client: DomainClient[Any], counts: Sequence[float] | NDArray[Any]) -> None:
    """Weigh classes by these numbers of images."""
    client.class_loss = class_loss(client.setup.train, counts, client.class_names, client.setup.device)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT
