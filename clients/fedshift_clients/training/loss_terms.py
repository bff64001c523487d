"""The mean of a loss and of its terms over the batches of local training."""

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from fedshift_core.wire.names import LOSS, LOSS_TERM


class LossTerms:
    """Adds up the terms of a loss over batches."""

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._seen = Counter[str]()
        self._samples = 0

    def add(self, terms: Mapping[str, Tensor], images: int) -> None:
        """Add those of a batch of so many images."""
        self._samples += images
        for name, term in terms.items():
            value = term.detach() * images
            self._totals[name] = self._totals[name] + value if name in self._totals else value
            self._seen[name] += images

    def means(self) -> dict[str, float]:
        """Return the loss and each term, under their names on the wire."""
        sums = {name: float(total) for name, total in self._totals.items()}
        loss = sum(total / self._samples for total in sums.values())
        return {LOSS: loss} | {LOSS_TERM + name: total / self._seen[name] for name, total in sums.items()}
