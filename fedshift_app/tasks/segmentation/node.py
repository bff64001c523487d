"""A node's part in segmentation: the loss of masks, and their figures (docs/guide/segmentation.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift_app.features.site_figures import due
from fedshift_app.features.site_figures.node import Seen, SiteFiguresOnNode, Watching
from fedshift_app.features.site_figures.numbers import Rows
from fedshift_app.tasks.segmentation import ASK, MILLIMETRES, PIXELS, RECORD, UNITS, figures, losses
from fedshift_app.tasks.segmentation.figures import rounded
from fedshift_clients.base import DomainClient
from fedshift_clients.features import Call, Place, Rate, Request
from fedshift_core.arrays import Arrays
from fedshift_core.run_settings import RunSettings


@dataclass(frozen=True)
class Masks(Rows):
    """Masks of N images.

    Attributes:
        own: (N, H, W).
        predicted: (N, H, W).
        patients: Of each image (N,); None if nobody says.
        spacing: As ``ImageSet.spacing``, (N, 2); None unless it is known of all images.
    """

    own: figures.Pixels
    predicted: figures.Pixels
    patients: NDArray[np.str_] | None
    spacing: figures.Floats | None


class WatchingMasks(Watching):
    """Keeps the masks of a pass."""

    def add(self, logits: Tensor, predicted: Tensor, y: Tensor) -> None:
        """Add a batch: predicted classes (B, H, W) and masks (B, H, W)."""
        self._parts.append((y.to(torch.uint8).cpu(), predicted.to(torch.uint8).cpu()))

    def total(self) -> Seen:
        """Return all batches together."""
        own, predicted = (torch.cat(part).numpy() for part in zip(*self._parts, strict=True))
        known = self._images.spacing
        spacing = None if known is None or np.isnan(known).any() else known
        return Seen(Masks(own, predicted, self._images.groups, spacing), self._whole)


class MasksOnNode(SiteFiguresOnNode):
    """Gives the client the loss of masks and their score, and works out figures of whole test sets."""

    place = Place.MODEL
    ask, record, watching = ASK, RECORD, WatchingMasks

    def attach(self, client: DomainClient[Any], config: RunSettings) -> None:
        """Let the client train and score by masks."""
        client.class_loss = loss = losses.MaskLoss(config.segmentation)
        client.grading = losses.MaskGrading(loss, client.model.num_classes)

    def refuse(self, request: Request) -> str:
        """Allow figures in the rounds in which the run has them."""
        asks = request.given.get(ASK) is True and due(request.config, request.server_round)
        return request.but(ASK, "" if asks else f"this run has no figures of masks in this round, {request.late}")

    def in_steps(self, figures: Arrays, rates: Callable[[str], Rate], least: int) -> Arrays:
        """Return figures rounded, without intervals and distances."""
        return {name: rounded(site, rates(name), least) for name, site in figures.items()}

    def figures(self, call: Call, domain: str, rows: Any) -> Arrays:
        """Return what leaves of the masks of a domain's images."""
        classes, tolerance = call.client.model.num_classes, call.config.segmentation.tolerance
        of_images = figures.of_images(rows.own, rows.predicted, classes, tolerance, rows.spacing)
        unit = PIXELS if rows.spacing is None else MILLIMETRES
        return {UNITS[unit] + domain: figures.of_site(of_images, rows.patients, call.client.setup.least_images)}
