"""Where a node's time goes, if the run asks for it (``profile=true``)."""

import time

import torch

# The parts of a node's time.
DATA = "data"  # reading, augmenting and normalising images
TRAINING = "forward/backward"  # loss, gradients, optimiser step
PROTOTYPES = "prototypes"  # what a method does before and after local training
MESSAGES = "messages"  # arrays to and from records and the model; setting up the client
EVALUATION = "evaluation"


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
        """Add the time since the last lap to a part. On CUDA this waits for the device, so it slows the run."""
        if not self._on:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now
