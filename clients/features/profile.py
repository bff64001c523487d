"""Where a node's time goes (``profile=true``)."""

import os
import time

from clients.features.base import Client, Metrics, NodeFeature
from clients.training.stopwatch import MESSAGES
from fedshift_core.wire.names import PROCESS, SECONDS


class ProfileOnNode(NodeFeature):
    """Sends the seconds of each part of the work."""

    def finish(self, client: Client, started: float) -> Metrics:
        """Return where the time went; what the client did not measure counts as messages."""
        if not client.setup.profile:
            return {}
        parts = dict(client.watch.seconds)
        rest = time.perf_counter() - started - sum(parts.values())
        parts[MESSAGES] = parts.get(MESSAGES, 0.0) + max(rest, 0.0)
        return {SECONDS + part: seconds for part, seconds in parts.items()} | {PROCESS: os.getpid()}
