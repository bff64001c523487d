"""Class means of features, added up batch by batch."""

import torch
from torch import Tensor


class EpochMeans:
    """Class means of the features that a node sees, such as those of one epoch of training."""

    def __init__(self, num_classes: int, device: torch.device) -> None:
        self._sums: Tensor | None = None  # as wide as the first features
        self._counts = torch.zeros(num_classes, dtype=torch.int64, device=device)

    def add(self, features: Tensor, y: Tensor) -> None:
        """Add features (B, D), as they were in the forward pass of a step, with labels (B,)."""
        if self._sums is None:
            self._sums = features.new_zeros(len(self._counts), features.shape[1])
        self._sums.index_add_(0, y, features.detach())
        self._counts += torch.bincount(y, minlength=len(self._counts))

    def result(self) -> tuple[Tensor, Tensor]:
        """Return means (C, D), zero for a class that was not seen, and counts (C,)."""
        assert self._sums is not None  # a node without images does not take part
        return self._sums / self._counts.clamp(min=1)[:, None], self._counts
