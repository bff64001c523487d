"""Figures of the node's own test images with 95 % intervals, worked out on the node (docs/guide/figures.md).

Only the figures, their intervals and the numbers of images and patients leave it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedshift_app.features.site_figures import due
from fedshift_app.features.site_figures.numbers import Rows, Scored, figures, rounded
from fedshift_clients.features import Call, Next, NodeFeature, Rate, Reply, Request
from fedshift_clients.training.eval_slices import Scores
from fedshift_clients.training.inputs import Observer
from fedshift_core.arrays import Arrays
from fedshift_core.wire import site_figures
from fedshift_core.wire.names import ASK_SITE_FIGURES, DOMAINS, DRAWN, SITE_COUNTS, SITE_FIGURES, STARTS, STOPS
from fedshift_datasets.base import ImageSet


@dataclass(frozen=True)
class Seen:
    """The findings of a pass, or of several.

    Attributes:
        rows: What the model said of each image.
        whole: Domains whose test images are all scored in one pass.
    """

    rows: Rows
    whole: frozenset[str]

    def __add__(self, other: "Seen") -> "Seen":
        return replace(self, rows=self.rows + other.rows)


class Watching:
    """Keeps what a pass over images of a number of classes predicts, batch after batch."""

    def __init__(self, images: ImageSet, classes: int, whole: frozenset[str]) -> None:
        self._images, self._classes, self._whole = images, classes, whole
        self._parts: list[tuple[Tensor, ...]] = []

    def add(self, logits: Tensor, predicted: Tensor, y: Tensor) -> None:
        """Add a batch: logits (B, C), predicted classes (B,) and true ones (B,)."""
        self._parts.append((logits, predicted, y))

    def total(self) -> Seen:
        """Return all batches together."""
        parts = self._parts or [(torch.zeros(0, self._classes), *torch.zeros(2, 0, dtype=torch.int64))]
        logits, predicted, y = map(torch.cat, zip(*parts, strict=True))
        p = logits.double().softmax(dim=1).cpu().numpy()
        return Seen(Scored(p, predicted.cpu().numpy(), y.cpu().numpy(), self._images.groups), self._whole)


class SiteFiguresOnNode(NodeFeature):
    """Works out figures of whole test sets.

    Attributes:
        ask: The name of a message's key that asks for them.
        record: That of the record with them.
        watching: Looks on while test images are scored.
    """

    ask, record = ASK_SITE_FIGURES, SITE_FIGURES
    watching: ClassVar[type[Watching]] = Watching

    def refuse(self, request: Request) -> str:
        """Allow it in the rounds in which the run has them."""
        config = request.config
        asked = request.given.get(ASK_SITE_FIGURES) is True and config.evaluate.site_figures
        asks = asked and due(config, request.server_round)
        why = f"this run has evaluate.site_figures=true, keep={config.keep}, {request.late}"
        return request.but(ASK_SITE_FIGURES, "" if asks else why)

    def on_scores(self, call: Call, next: Next) -> Reply:
        """Look on while test images are scored; add the figures of each domain whose images were all scored.

        The whole of a test set that simulated nodes share out is scored by the node that has its first part.
        """
        whole = frozenset(domain for domain, is_whole, _ in self._parts(call.options) if is_whole)
        reply = next(call.observed_by(self.name, self._watching(call, whole)) if whole else call)
        figures: Arrays = {}
        for domain, scores in reply.scores.items():
            figures |= self._figures(call, domain, scores)
        for domain, _, drawn in self._parts(call.options):
            if drawn is None:
                continue
            with call.client.observed_by({self.name: self._watching(call, frozenset({domain}))}):
                for _, test in call.client.tests({DOMAINS: [domain], DRAWN: [drawn]}, mixed=call.mixed):
                    figures |= self._figures(call, domain, call.client.score_test(test))
        if figures:
            reply.records[self.record] = figures
        return reply

    def in_steps(self, figures: Arrays, rates: Callable[[str], Rate], least: int) -> Arrays:
        """Return figures rounded, with intervals of the rounded ones."""
        in_steps: Arrays = {}
        for domain in (name.removeprefix(SITE_COUNTS) for name in figures if name.startswith(SITE_COUNTS)):
            numbers = site_figures.from_arrays(figures, domain)
            in_steps |= rounded(numbers, rates(domain), least).arrays(domain)
        return in_steps

    def _watching(self, call: Call, whole: frozenset[str]) -> Callable[[ImageSet], Observer]:
        """Return what makes an observer of these whole test sets."""
        return lambda images: self.watching(images, call.client.model.num_classes, whole)

    def _parts(self, request: Mapping[str, Any]) -> Iterator[tuple[str, bool, int | None]]:
        """Yield each domain, whether the node scores all of it, and its number of images if it has the first part."""
        for place, domain in enumerate(request[DOMAINS] if request.get(self.ask) else ()):
            if STARTS not in request:
                yield domain, True, None
                continue
            start, stop, drawn = (request[key][place] for key in (STARTS, STOPS, DRAWN))
            first = start == 0 and stop < drawn
            yield domain, start == 0 and stop == drawn, drawn if first else None

    def _figures(self, call: Call, domain: str, scores: Scores) -> Arrays:
        """Return the figures of a domain whose test images were all scored."""
        seen: Seen | None = scores.seen.get(self.name)
        return {} if seen is None or domain not in seen.whole else self.figures(call, domain, seen.rows)

    def figures(self, call: Call, domain: str, rows: Any) -> Arrays:
        """Return what leaves of the predictions of a domain's images."""
        least = call.client.setup.least_images
        if least > 1:  # a mark of scores that are not finite would tell of one image
            rows = replace(rows, p=np.nan_to_num(rows.p, nan=1 / rows.p.shape[1]))
        return figures(rows, least).arrays(domain)
