"""``dataset.features``: rows of a file in the place of what a frozen encoder makes of images."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.precomputed import FrozenFeatures
from fedshift_clients.training.settings import ImageConfig, ModelConfig
from fedshift_core.errors import DataError
from fedshift_datasets.io.given_features import KEY, Given
from fedshift_datasets.listing import ImageSet


class GivenFeatures(FrozenFeatures):
    """Features of images that a user computed; they are kept as those of an encoder are."""

    depth = "encoder"

    def __init__(
        self,
        model: SplitModel,
        config: ModelConfig,
        images: ImageConfig,
        layout: torch.memory_format,
        given: Given,
        by_mark: Callable[[], Mapping[bytes, int]],
    ) -> None:
        """Take the content of a file.

        Args:
            model: On its device; its encoder is :class:`fedshift_clients.models.given.Given`.
            config: What is said of it.
            images: Augmentation and normalisation.
            layout: How maps lie in memory.
            given: The file.
            by_mark: Returns the row of each image of this machine by its mark.
        """
        self._keep(model, config, images, layout)
        self._given, self._by_mark = given, by_mark
        self._shape = given.rows.shape[1:]

    @property
    def classes(self) -> NDArray[np.float32] | None:
        """Embeddings of the classes' names (C, D); None if the file has none."""
        return self._given.classes

    def _described(self) -> dict[str, Any]:
        return {"file": self._given.sha256}

    def _computed(self, images: ImageSet, index: NDArray[np.int64], view: int) -> NDArray[Any]:
        places = self._by_mark()
        found = [places.get(mark.tobytes(), -1) for mark in images.marks[index]]
        if -1 in found:
            raise DataError(f"{KEY}: {found.count(-1)} images are not those of the files, but changed ones")
        return self._given.rows[found]
