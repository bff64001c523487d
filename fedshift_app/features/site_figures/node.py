"""Figures of the node's own test images with 95 % intervals, worked out on the node (docs/guide/figures.md).

Only the figures, their intervals and the numbers of images and patients leave it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedshift_app.features.site_figures import due
from fedshift_app.features.site_figures import numbers as site_numbers
from fedshift_app.features.site_figures.numbers import Scored
from fedshift_clients.base import DomainClient
from fedshift_clients.features import Call, Next, NodeFeature, Rate, Reply, Request
from fedshift_clients.training.eval_slices import Scores
from fedshift_clients.training.inputs import Observer
from fedshift_core.arrays import Arrays
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.plural import plural
from fedshift_core.run_settings import RunSettings
from fedshift_core.wire import site_figures
from fedshift_core.wire.names import ASK_SITE_FIGURES, DOMAINS, DRAWN, SITE_COUNTS, SITE_FIGURES, STARTS, STOPS
from fedshift_core.wire.site_figures import BY_CLASS, KNOWN, OVERALL, UNKNOWN, SiteNumbers
from fedshift_datasets.base import ImageSet

log = logging.getLogger("fedshift")

MOST_CLASSES = 20  # whose figures a node's log shows


@dataclass(frozen=True)
class Terms:
    """Under which terms figures are worked out.

    Attributes:
        least: Least images behind a number that leaves the node.
        server_round: The round.
        whole: Domains whose test images are all scored in one pass.
        logged: The node is a real one, whose log shows its figures.
        class_names: For the log; empty where nobody said.
    """

    least: int
    server_round: int
    whole: frozenset[str]
    logged: bool
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """What was seen of a pass, or of several."""

    scored: Scored
    terms: Terms

    def __add__(self, other: "Seen") -> "Seen":
        return replace(self, scored=self.scored + other.scored)


class Watching:
    """Keeps what a pass predicts, batch after batch."""

    def __init__(self, images: ImageSet, classes: int, terms: Terms) -> None:
        self._groups, self._terms = images.groups, terms
        self._parts = [(torch.zeros(0, classes), *torch.zeros(2, 0, dtype=torch.int64))]

    def add(self, logits: Tensor, predicted: Tensor, y: Tensor) -> None:
        """Add a batch: logits (B, C), predicted classes (B,) and true ones (B,)."""
        self._parts.append((logits, predicted, y))

    def total(self) -> Seen:
        """Return all batches together."""
        columns = zip(*(self._parts[1:] or self._parts), strict=True)
        logits, predicted, y = (torch.cat(column) for column in columns)
        probabilities = logits.double().softmax(dim=1)
        if self._terms.least > 1:  # a mark of scores that are not finite would tell of one image
            probabilities = probabilities.nan_to_num(nan=1 / logits.shape[1])
        p = probabilities.cpu().numpy()
        return Seen(Scored(p, predicted.cpu().numpy(), y.cpu().numpy(), self._groups), self._terms)


class SiteFiguresOnNode(NodeFeature):
    """Works out figures of whole test sets.

    Attributes:
        ask: The name of a message's key that asks for them.
        record: That of the record with them.
    """

    ask, record = ASK_SITE_FIGURES, SITE_FIGURES

    def attach(self, client: DomainClient[Any], config: RunSettings) -> None:
        """Let the client know the names of the classes."""
        client.class_names = config.dataset.known().classes

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
            figures |= self._figures(domain, scores)
        for domain, _, drawn in self._parts(call.options):
            if drawn is None:
                continue
            with call.client.observed_by({self.name: self._watching(call, frozenset({domain}))}):
                for _, test in call.client.tests({DOMAINS: [domain], DRAWN: [drawn]}, mixed=call.mixed):
                    figures |= self._figures(domain, call.client.score_test(test))
        if figures:
            reply.records[self.record] = figures
        return reply

    def in_steps(self, figures: Arrays, rates: Callable[[str], Rate], least: int) -> Arrays:
        """Return figures rounded, with intervals of the rounded ones."""
        rounded: Arrays = {}
        for domain in (name.removeprefix(SITE_COUNTS) for name in figures if name.startswith(SITE_COUNTS)):
            numbers = site_figures.from_arrays(figures, domain)
            rounded |= site_numbers.rounded(numbers, rates(domain), least).arrays(domain)
        return rounded

    def _watching(self, call: Call, whole: frozenset[str]) -> Callable[[ImageSet], Observer]:
        """Return what makes an observer of these whole test sets."""
        client = call.client
        logged = STARTS not in call.options
        terms = Terms(client.setup.least_images, call.server_round, whole, logged, client.class_names)
        return lambda images: Watching(images, client.model.num_classes, terms)

    def _parts(self, request: Mapping[str, Any]) -> Iterator[tuple[str, bool, int | None]]:
        """Yield each domain, whether the node scores all of it, and its number of images if it has the first part."""
        for place, domain in enumerate(request[DOMAINS] if request.get(self.ask) else ()):
            if STARTS not in request:
                yield domain, True, None
                continue
            start, stop, drawn = (request[key][place] for key in (STARTS, STOPS, DRAWN))
            first = start == 0 and stop < drawn
            yield domain, start == 0 and stop == drawn, drawn if first else None

    def _figures(self, domain: str, scores: Scores) -> Arrays:
        """Return the figures of a domain whose test images were all scored."""
        seen: Seen | None = scores.seen.get(self.name)
        if seen is None or domain not in seen.terms.whole:
            return {}
        numbers = site_numbers.figures(seen.scored, seen.terms.least)
        if seen.terms.logged:
            fields = {"event": "site_figures", "round": seen.terms.server_round, "domain": domain}
            for line in lines_of(numbers, domain, seen.terms):
                log.info("%s", line, extra=fields)
        return numbers.arrays(domain)


def lines_of(numbers: SiteNumbers, domain: str, terms: Terms) -> list[str]:
    """Return the figures as lines of a node's log."""
    patients = "" if numbers.patients == UNKNOWN else f" of {plural(numbers.patients, 'patient')}"
    images = plural(numbers.images, "test image") + patients
    overall = _text(OVERALL, numbers.overall, numbers.overall_marks)
    lines = [f"round {terms.server_round}, {domain}, {images}: {overall}"]
    for k, number in enumerate(numbers.of_class[:MOST_CLASSES].tolist()):
        label = plain(terms.class_names[k], MOST_NAME) if terms.class_names else f"class {k}"
        shown = _text(BY_CLASS, numbers.by_class[:, k], numbers.by_class_marks[:, k])
        lines.append(f"  {label}: too few images" if number == UNKNOWN else f"  {label}, {number} images: {shown}")
    more = len(numbers.of_class) - MOST_CLASSES
    return [*lines, f"  and {plural(more, 'more class', 'more classes')}"] if more > 0 else lines


def _text(names: Sequence[str], numbers: Any, marks: Any) -> str:
    """Return figures with their intervals; a dash where there is none."""
    values = [f"{v:.3f} ({low:.3f} to {high:.3f})" for v, low, high in numbers]
    each = zip(names, values, marks, strict=True)
    return ", ".join(f"{name.replace('_', ' ')} {value if mark == KNOWN else '-'}" for name, value, mark in each)
