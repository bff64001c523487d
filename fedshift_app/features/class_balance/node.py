"""Losses for classes of unequal numbers of images (``train.class_weights``, ``train.loss``).

Numbers of images are the node's own, or with ``train.class_counts=federation`` those of all nodes. The server sends
them with each message: a score may train first. The equations are in ``fedshift_clients.losses.imbalance``.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_clients.features.base import Client, Metrics, NodeFeature, Request
from fedshift_clients.losses.imbalance import class_loss
from fedshift_core.errors import RequestError
from fedshift_core.limits import LARGEST_COUNT
from fedshift_core.plural import plural
from fedshift_core.run_settings import RunSettings
from fedshift_core.wire.names import CLASS_TOTALS


class ClassBalanceOnNode(NodeFeature):
    """Gives the client the loss that the section ``train`` asks for."""

    def attach(self, client: Client, config: RunSettings) -> None:
        """Weigh classes by the node's own images, until the server says how many there are of all nodes."""
        client.class_names = config.dataset.known().classes
        weigh(client, np.bincount(client.train_set.y, minlength=len(client.class_names)))

    def refuse(self, request: Request, key: str, value: Any) -> str:
        """Allow numbers of images by class where the run asks for those of all nodes."""
        if not request.config.train.asks_federation:
            return "this run weighs no class by the images of all nodes (train.class_counts=federation)"
        classes = len(request.config.dataset.known().classes)
        fits = isinstance(value, list) and len(value) == classes and all(map(_is_number, value))
        return (
            ""
            if fits
            else f"it is one number from 0 to {LARGEST_COUNT} for each of {plural(classes, 'class', 'classes')}"
        )

    def missing(self, request: Request) -> str:
        """Name the numbers where a message that asks for scores lacks them."""
        wanted = request.config.train.asks_federation and CLASS_TOTALS not in request.given
        return f"this run has train.class_counts=federation, and the message lacks {CLASS_TOTALS}" if wanted else ""

    def before_training(self, client: Client, request: Mapping[str, Any]) -> Metrics:
        """Weigh classes by the images of all nodes; raise ``RequestError`` if the message lacks their numbers."""
        if client.setup.train.asks_federation and CLASS_TOTALS not in request:
            raise RequestError(f"train.class_counts=federation: the message lacks {CLASS_TOTALS}")
        self.around_scores(client, request)
        return {}

    def around_scores(self, client: Client, request: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Weigh classes likewise where something trains before a score."""
        if CLASS_TOTALS in request:
            weigh(client, request[CLASS_TOTALS])
        return nullcontext()


def weigh(client: Client, counts: Sequence[float] | NDArray[Any]) -> None:
    """Weigh classes by these numbers of images."""
    client.class_loss = class_loss(client.setup.train, counts, client.class_names, client.setup.device)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT
