"""A node's part in segmentation: the loss of masks, and their figures (docs/guide/segmentation.md)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift_app.features.site_figures import due
from fedshift_app.features.site_figures.node import SiteFiguresOnNode
from fedshift_app.tasks.segmentation import ASK, MILLIMETRES, PIXELS, RECORD, UNITS, figures, losses
from fedshift_app.tasks.segmentation.figures import rounded
from fedshift_clients.base import DomainClient
from fedshift_clients.features import Call, Place, Rate, Request
from fedshift_clients.training.eval_slices import Scores
from fedshift_clients.training.inputs import Observer
from fedshift_core.arrays import Arrays
from fedshift_core.run_settings import RunSettings
from fedshift_datasets.base import ImageSet


@dataclass(frozen=True)
class Seen:
    """Masks of a pass, or of several.

    Attributes:
        masks: (N, H, W).
        predicted: (N, H, W).
        patients: Of each image (N,); None if nobody says.
        spacing: As ``ImageSet.spacing``, (N, 2); None unless it is known of all images.
        whole: Domains whose test images are all scored in one pass.
    """

    masks: figures.Pixels
    predicted: figures.Pixels
    patients: NDArray[np.str_] | None
    spacing: figures.Floats | None
    whole: frozenset[str]

    def __add__(self, other: "Seen") -> "Seen":
        masks, predicted = np.concatenate([self.masks, other.masks]), np.concatenate([self.predicted, other.predicted])
        patients, spacing = _both(self.patients, other.patients), _both(self.spacing, other.spacing)
        return replace(self, masks=masks, predicted=predicted, patients=patients, spacing=spacing)


def _both(own: NDArray[Any] | None, other: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if own is None or other is None else np.concatenate([own, other])


class Watching:
    """Keeps what a pass predicts, batch after batch."""

    def __init__(self, images: ImageSet, whole: frozenset[str]) -> None:
        self._groups, self._whole, known = images.groups, whole, images.spacing
        self._spacing = None if known is None or np.isnan(known).any() else known
        self._parts: list[tuple[Tensor, Tensor]] = []

    def add(self, logits: Tensor, predicted: Tensor, y: Tensor) -> None:
        """Add a batch: predicted classes (B, H, W) and masks (B, H, W)."""
        self._parts.append((y.to(torch.uint8).cpu(), predicted.to(torch.uint8).cpu()))

    def total(self) -> Seen:
        """Return all batches together."""
        masks, predicted = (torch.cat(part).numpy() for part in zip(*self._parts, strict=True))
        return Seen(masks, predicted, self._groups, self._spacing, self._whole)


class MasksOnNode(SiteFiguresOnNode):
    """Gives the client the loss of masks and their score, and works out figures of whole test sets."""

    place = Place.MODEL
    ask, record = ASK, RECORD
    _least, _classes, _tolerance = 1, 0, 1.0

    def attach(self, client: DomainClient[Any], config: RunSettings) -> None:
        """Let the client train and score by masks."""
        client.class_loss = loss = losses.MaskLoss(config.segmentation)
        self._classes, self._tolerance = client.model.num_classes, config.segmentation.tolerance
        self._least = client.setup.least_images
        client.grading = losses.MaskGrading(loss, self._classes)

    def refuse(self, request: Request) -> str:
        """Allow figures in the rounds in which the run has them."""
        asks = request.given.get(ASK) is True and due(request.config, request.server_round)
        return request.but(ASK, "" if asks else f"this run has no figures of masks in this round, {request.late}")

    def in_steps(self, figures: Arrays, rates: Callable[[str], Rate], least: int) -> Arrays:
        """Return figures rounded, without intervals and distances."""
        return {name: rounded(site, rates(name), least) for name, site in figures.items()}

    def _watching(self, call: Call, whole: frozenset[str]) -> Callable[[ImageSet], Observer]:
        return lambda images: Watching(images, whole)

    def _figures(self, domain: str, scores: Scores) -> Arrays:
        seen: Seen | None = scores.seen.get(self.name)
        if seen is None or domain not in seen.whole:
            return {}
        of_images = figures.of_images(seen.masks, seen.predicted, self._classes, self._tolerance, seen.spacing)
        unit = PIXELS if seen.spacing is None else MILLIMETRES
        return {UNITS[unit] + domain: figures.of_site(of_images, seen.patients, self._least)}
