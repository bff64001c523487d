"""Where a node's time goes (``profile=true``)."""

import os
import time

import torch

from fedshift_clients.features.base import Client, Metrics, NodeFeature
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

    def attach(self, client: Client, config: RunSettings) -> None:
        """Measure what the client does."""
        if config.profile:
            client.passed = Stopwatch(client.setup.device)

    def finish(self, client: Client, started: float) -> Metrics:
        """Return where the time went; what the client did not measure counts as messages."""
        watch = client.passed
        if not isinstance(watch, Stopwatch):
            return {}
        parts = dict(watch.seconds)
        rest = time.perf_counter() - started - sum(parts.values())
        parts[MESSAGES] = parts.get(MESSAGES, 0.0) + max(rest, 0.0)
        return {SECONDS + part: seconds for part, seconds in parts.items()} | {PROCESS: os.getpid()}
