"""Zero-shot client (CLIP, Radford et al., ICML 2021, section 3.1.2): classes by the embeddings of their names.

A test image with features f is of the class c whose embedding t_c has the largest cosine with them; the logits are
scale * cos(f, t_c). Both come from a file (``dataset.features``, arrays ``features`` and ``classes``). No image trains
anything, and no weights travel.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedshift_clients.methods.own_models import KeepsModel
from fedshift_clients.training.given_features import GivenFeatures
from fedshift_clients.training.phases import Phase
from fedshift_core.errors import DataError
from fedshift_core.methods.zero_shot import ZeroShotParams


class ZeroShotClient(KeepsModel[ZeroShotParams]):
    """Compares given features with the embeddings of the classes' names, and trains nothing."""

    heterogeneous = False

    def received(self) -> None:
        """Take the embeddings of the classes' names, each of length 1 (C, D).

        Raises:
            DataError: If the file has none, or another number of them.
        """
        given = self._bench.frozen
        rows = given.classes if isinstance(given, GivenFeatures) else None
        if rows is None or len(rows) != self.model.num_classes:
            raise DataError(
                f"dataset.features: method=zero-shot needs the array classes, an embedding for each of "
                f"{self.model.num_classes} classes; found {'none' if rows is None else len(rows)}"
            )
        self._classes = functional.normalize(torch.from_numpy(rows), dim=1)

    def phases(self, server_round: int) -> Sequence[Phase]:
        """Return no part: nothing trains."""
        return []

    def predict(self, x: Tensor) -> Tensor:
        """Return scale * cos(f, t_c) for each image and class (B, C)."""
        features, _ = self.forward(x)
        return self.params.scale * functional.normalize(features, dim=1) @ self._classes.to(features).T
