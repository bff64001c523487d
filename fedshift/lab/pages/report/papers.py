"""Figures of the papers; a figure that the run does not allow is named with the reason."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedshift.lab.pages.report import analysis, panels, same_images
from fedshift.lab.pages.report import features as report_features
from fedshift.lab.pages.report.analysis import Floats
from fedshift.lab.pages.report.features import NotOfThisRun, Seen
from fedshift.lab.pages.report.predictions import Sight
from fedshift.run.html.drawing import Drawing
from fedshift.run.html.sections import Section
from fedshift.run.reading import Record
from fedshift_app.config.sections import RunConfig
from fedshift_clients.base import DomainClient
from fedshift_core.errors import FedShiftError
from fedshift_core.plural import plural
from fedshift_strategies.federation.roster import Node

ONE_NODE = "FedCode, figures 1a and 4 (one node's model on all domains)"
ROUNDS = "FedSeProto, figure 2 (t-SNE at several rounds)"
VARIANCE = "I2PFL, figures 1 and 3 (variance of prototypes over domains)"
VARIANCE_ROUNDS = "I2PFL, figures 1 and 3, over the rounds"
SAME_IMAGES = "F2DC, figure 2 (Grad-CAM of the same images for every method)"


def add(
    parts: list[Section], record: Record, sight: Sight, config: RunConfig, node: Node, named: bool,
    numbers: dict[str, Any],
) -> None:  # fmt: skip
    """Add the figures to the sections of the page; none if no test image can be scored.

    Args:
        parts: The sections that need test images or weights.
        record: The run.
        sight: The predictions on its test images.
        config: Its configuration, with the folder of the images on this machine.
        node: The node whose model is used.
        named: Whether the user named the node.
        numbers: Receives the numbers behind the figures, for ``report.json``.
    """
    if sight.nothing:
        return
    section = {part.id: part for part in parts}
    look = _Look(record, sight, config, node, named, numbers)
    threads = torch.get_num_threads()
    try:
        for part, name, draw in (
            ("features", ONE_NODE, look.one_node), ("features", ROUNDS, look.rounds),
            ("prototypes", VARIANCE, look.variance), ("prototypes", VARIANCE_ROUNDS, look.variance_by_round),
            ("attention", SAME_IMAGES, look.same_images),
        ):  # fmt: skip
            _draw(section[part], name, draw)
    finally:
        torch.set_num_threads(threads)


def _draw(section: Section, name: str, draw: Callable[[], Drawing]) -> None:
    try:
        section.figures.append(draw())
    except FedShiftError as why:
        reason = str(why).replace("\n", "; ")
        section.notes.append(f"{name}: not drawn: {reason}{'' if why.remedy else '.'}")
        if not isinstance(why, NotOfThisRun):
            section.lacks[name] = reason


@dataclass(frozen=True)
class _Look:
    record: Record
    sight: Sight
    config: RunConfig
    node: Node
    named: bool
    numbers: dict[str, Any]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.record.classes

    @property
    def who(self) -> str:
        return f"node {self.node.index}"

    def one_node(self) -> Drawing:
        """FedCode, figures 1a and 4."""
        domains = self.config.dataset.domains
        seen = report_features.look(
            self._after_local_training(), self.config, report_features.NODE_IMAGES // len(domains)
        )
        placed = analysis.tsne(_usable(seen).features, self.config.seed)
        return panels.one_node(placed, seen, domains, self.classes, self.who, self.node.domain)

    def rounds(self) -> Drawing:
        """FedSeProto, figure 2: the images of the first domain."""
        kept = {n: _of_domain(seen, 0) for n, seen in self._kept.items()}
        placed = {n: analysis.tsne(_usable(seen).features, self.config.seed) for n, seen in kept.items()}
        domain = self.config.dataset.domains[0]
        return panels.rounds(placed, next(iter(kept.values())), domain, self.classes)

    def variance(self) -> Drawing:
        """I2PFL, figures 1 and 3: by class, of all test images that were scored."""
        views = list(self.sight.views.values())
        if len({view.features.shape[1] for view in views}) > 1:
            raise NotOfThisRun("the features of the networks differ in width")
        variance = self._variance([(view.features, view.y) for view in views])
        self.numbers["prototype_variance"] = {"by_class": variance.tolist(), "mean": float(np.nanmean(variance))}
        return panels.variance_by_class(variance, self.classes)

    def variance_by_round(self) -> Drawing:
        """I2PFL, figures 1 and 3: over the rounds that are kept."""
        places = range(len(self.config.dataset.domains))
        parts = {n: [_of_domain(seen, place) for place in places] for n, seen in self._kept.items()}
        by_round = {n: self._variance([(part.features, part.y) for part in each]) for n, each in parts.items()}
        means = {n: float(np.nanmean(each)) for n, each in by_round.items()}
        self.numbers["prototype_variance_by_round"] = {str(n): mean for n, mean in means.items()}
        return panels.variance_by_round(means, by_round)

    def same_images(self) -> Drawing:
        """F2DC, figure 2: of a node that was named after one more local round, else of the last weights."""
        if self.named:
            client, who = self._after_local_training(), f"{self.who} right after one more local round"
        else:
            client = report_features.with_last_weights(self.record, self.config, self.node)
            who = f"the last weights as {self.who} has them"
        examples = same_images.attended(client, self.config)
        self.numbers["same_images"] = {
            "node": self.node.index, "after_local_round": self.named,
            "images": [
                {"domain": item.domain, "place": item.place, "class": item.true, "predicted": item.predicted,
                 "highest": dict(zip(same_images.MAPS, item.peaks, strict=False))}
                for item in examples
            ],
        }  # fmt: skip
        return panels.same_images(examples, self.classes, who)

    def _after_local_training(self) -> DomainClient:
        client, weights = self._trained
        client.model.load_state_dict(weights)  # clients of one process share a model, which other figures overwrite
        return client

    @cached_property
    def _trained(self) -> tuple[DomainClient, dict[str, Tensor]]:
        client = report_features.after_local_training(self.record, self.config, self.node, named=self.named)
        return client, {name: tensor.clone() for name, tensor in client.model.state_dict().items()}

    @cached_property
    def _kept(self) -> dict[int, Seen]:
        return report_features.at_kept_rounds(self.record, self.config, self.node)

    def _variance(self, parts: list[tuple[Floats, analysis.Ints]]) -> Floats:
        """Return the variance of each class's prototypes over the parts; each part is a domain.

        Raises:
            FedShiftError: If no class has images in two domains, or features are not finite.
        """
        if not all(np.isfinite(features).all() for features, _ in parts):
            raise FedShiftError("features are not finite")
        means, present = zip(
            *(analysis.class_means(features, y, len(self.classes)) for features, y in parts), strict=True
        )
        variance = analysis.variance_over_domains(np.stack(means), np.stack(present))
        if np.isnan(variance).all():
            raise NotOfThisRun("no class has test images in two domains")
        return variance


def _usable(seen: Seen) -> Seen:
    """Return the features if t-SNE can use them.

    Raises:
        FedShiftError: If features are not finite, or there are too few images.
    """
    if not np.isfinite(seen.features).all():
        raise FedShiftError("features are not finite")
    if len(seen.y) < analysis.TSNE_LEAST:
        raise FedShiftError(f"{plural(len(seen.y), 'image is', 'images are')} too few")
    return seen


def _of_domain(seen: Seen, place: int) -> Seen:
    selected = seen.domain_of == place
    return Seen(seen.features[selected], seen.y[selected], seen.domain_of[selected])
