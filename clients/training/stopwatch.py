"""Where a node's time goes, if the run asks for it (``profile=true``)."""

import time

import torch

from fedshift_core.wire.names import WORK

# The parts of a node's time: reading, augmenting and normalising images; loss, gradients, optimiser step; what a method
# does before and after local training; arrays to and from records and the model, setting up the client; evaluation.
DATA, TRAINING, PROTOTYPES, MESSAGES, EVALUATION = WORK


class Stopwatch:
    """Adds up seconds by part; switched off, it does nothing.

    Attributes:
        seconds: By part.
    """

    def __init__(self, device: torch.device, *, on: bool) -> None:
        self.seconds: dict[str, float] = {}
        self._on = on
        self._device = device
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """Add the time since the last lap to a part of the above: the server knows no other.

        On CUDA this waits for the device, so it slows the run.
        """
        if not self._on:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now
