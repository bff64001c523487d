"""Where a node's time goes (``profile=true``)."""

import os
import time
from typing import Any

import torch

from fedshift_clients.base import DomainClient
from fedshift_clients.features import Call, Next, NodeFeature, Place, Reply
from fedshift_clients.training.phases import MESSAGES
from fedshift_core.run_settings import RunSettings
from fedshift_core.wire.names import PROCESS, SECONDS


class Stopwatch:
    """Adds up seconds by part.

    Attributes:
        seconds: By part.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device
        self._last = time.perf_counter()

    def __call__(self, part: str) -> None:
        """Add the time since the last part to this one.

        On CUDA this waits for the device, so it slows the run.
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now


class ProfileOnNode(NodeFeature):
    """Sends the seconds of each part of the work."""

    place = Place.CLOCK

    def attach(self, client: DomainClient[Any], config: RunSettings) -> None:
        """Measure what the client does."""
        client.passed = Stopwatch(client.setup.device)

    def on_train(self, call: Call, next: Next) -> Reply:
        """Add where the time went; what the client did not measure counts as messages."""
        reply, watch = next(call), call.client.passed
        assert isinstance(watch, Stopwatch)
        rest = time.perf_counter() - call.started - sum(watch.seconds.values())
        parts = {MESSAGES: 0.0} | watch.seconds
        parts[MESSAGES] += max(rest, 0.0)
        reply.metrics.update({SECONDS + part: seconds for part, seconds in parts.items()})
        reply.metrics[PROCESS] = os.getpid()
        return reply

    on_scores = on_train
