"""Counts of scored test images, on the device: confusion, calibration, scores by class (docs/guide/figures.md)."""

import torch
from torch import Tensor

from fedshift_clients.features import Call, Next, NodeFeature, Reply, Request
from fedshift_core.wire.counts import CALIBRATION_BINS, MOST_CLASSES, SCORE_BINS, Counts, score_edges, sums_of
from fedshift_core.wire.names import COUNTS, FIGURES

CHUNK = 4096  # images that are counted together: a batch alone would cost a dozen small operations


class FiguresOnNode(NodeFeature):
    """Counts how predictions, confidence and scores are spread."""

    def refuse(self, request: Request) -> str:
        """Allow it where the run scores test images."""
        asks = request.given.get(FIGURES) is True and request.config.evaluate.test
        return request.but(
            FIGURES, "" if asks else "this run has evaluate.figures=true, which needs evaluate.test=true"
        )

    def on_scores(self, call: Call, next: Next) -> Reply:
        """Count while test images are scored; add the counts of each domain."""
        if not call.options.get(FIGURES):
            return next(call)
        reply = next(call.observed_by(self.name, lambda images: Counting(call.client.model.num_classes)))
        for domain, scores in reply.scores.items():
            if self.name in scores.seen:
                reply.records.setdefault(COUNTS, {}).update(scores.seen[self.name].arrays(domain))
        return reply


class Counting:
    """Counts what a pass predicts, batch after batch."""

    def __init__(self, classes: int) -> None:
        self._empty = torch.zeros(0, classes), *torch.zeros(2, 0, dtype=torch.int64)
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self._sum: Counts | None = None

    def add(self, logits: Tensor, predicted: Tensor, y: Tensor) -> None:
        """Add a batch: logits (B, C), predicted classes (B,) and true ones (B,)."""
        self._waiting.append((logits, predicted, y))
        if sum(len(each) for each, _, _ in self._waiting) >= CHUNK:
            self.total()

    def total(self) -> Counts:
        """Return the counts of all batches."""
        if self._waiting or self._sum is None:
            columns = zip(*(self._waiting or [self._empty]), strict=True)
            logits, predicted, y = (torch.cat(column) for column in columns)
            counts = count(logits, predicted, y, logits.shape[1])
            self._sum = counts if self._sum is None else self._sum + counts
            self._waiting = []
        return self._sum


def count(logits: Tensor, predicted: Tensor, y: Tensor, classes: int) -> Counts:
    """Count images.

    Args:
        logits: (N, C); what is not finite comes into some bin.
        predicted: Predicted classes, (N,).
        y: True classes, (N,).
        classes: C.
    """
    log_p = logits.double().log_softmax(dim=1)
    confusion = torch.bincount(y * classes + predicted, minlength=classes**2).view(classes, classes).cpu().numpy()
    calibration = _calibration(log_p, predicted == y).cpu().numpy()
    if classes > MOST_CLASSES:
        return Counts(sums_of(confusion), calibration, None, None)
    return Counts(sums_of(confusion), calibration, confusion, _scores(log_p, y, classes).cpu().numpy())


def _calibration(log_p: Tensor, right: Tensor) -> Tensor:
    """Return how many, how many right, and summed confidence by bin, (3, 15), float64."""
    confidence = log_p.exp().amax(dim=1).nan_to_num()
    place = ((confidence * CALIBRATION_BINS).ceil().long() - 1).clamp(0, CALIBRATION_BINS - 1)
    # A product, as sums of floats by index depend on the order of a GPU's threads.
    member = (place == torch.arange(CALIBRATION_BINS, device=place.device)[:, None]).double()
    return torch.stack([torch.ones_like(confidence), right.double(), confidence]) @ member.T


def _scores(log_p: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return the histograms of each class's log-odds, (2, C, B)."""
    odds = log_p - (-log_p.expm1()).log()
    edges = torch.from_numpy(score_edges(classes)).to(odds.device)
    places = torch.bucketize(odds, edges) + SCORE_BINS * torch.arange(classes, device=odds.device)
    size = classes * SCORE_BINS
    every = torch.bincount(places.flatten(), minlength=size)
    own = torch.bincount(places.gather(1, y[:, None]).flatten(), minlength=size)
    return torch.stack([own, every - own]).view(2, classes, SCORE_BINS)
