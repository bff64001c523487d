"""Statistics of the nodes' training images, asked of each node once (``statistics.share``).

Each node that is connected is asked before it trains, in a run without rounds before it is scored. What it tells is
kept with the checkpoints, so that a resumed run does not ask it again. With ``statistics.share=nodes`` means and
variances of all nodes go to each node with every message about work; with ``statistics.image_share`` means and
deviations of single images too.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict

import numpy as np

from fedshift_app.features.statistics import Options, show
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FederationError
from fedshift_core.limits import BINS, Refused, some
from fedshift_core.shown import named
from fedshift_core.wire.image_styles import ImageStyles
from fedshift_core.wire.names import CONFIG, IMAGE_STYLES, SITE_IMAGES
from fedshift_core.wire.site_images import FederationImages, SiteImages
from fedshift_strategies.features.base import Asked, Node, Phase, RoundResult, Scoring, ServerFeature, Steps, Training
from fedshift_strategies.federation import checks

log = logging.getLogger("fedshift")

#: What the server keeps: by node what it tells, as JSON in bytes.
SITES = "statistics/sites"


class SiteStatistics(ServerFeature):
    """Asks nodes for statistics of their images, shows them side by side, and sends means and variances to all."""

    prefixes = ("statistics/",)

    _failed: Set[int] = frozenset()  # nodes that answered with an error of their own: they are asked again

    @property
    def state(self) -> Arrays:
        """What nodes have reported, for the checkpoint."""
        kept = {node: (domain, asdict(site)) for node, (domain, site) in sorted(self._sites.items())}
        return {SITES: np.frombuffer(json.dumps(kept).encode(), np.uint8)} if kept else {}

    @state.setter
    def state(self, arrays: Arrays) -> None:
        self._sites = _read(arrays)

    @property
    def of_all(self) -> FederationImages | None:
        """Means and variances of all nodes that tell theirs; None while none does."""
        return _of_all(self._sites, self.run.domains)

    @property
    def _options(self) -> Options:
        return Options.read(self.run.config)

    def describe(self, nodes: Sequence[Node]) -> Iterable[str]:
        """Return what nodes tell in one line."""
        share, images = self._options.share, self._options.image_share
        who = "the server" if share == "server" else "the server and all nodes"
        single = f", and of {images:g} of them one by one" if images > 0 else ""
        yield f"statistics.share={share}: each node tells {who} statistics of its training images{single}, once"

    # --- the question --------------------------------------------------------------------------------

    def on_round(self, training: Training) -> Steps:
        """Ask connected nodes that were not asked yet; one that does not answer does not train in the round.

        Raises:
            FederationError: If nodes need statistics, none tells any before round 1, and none is late.
        """
        lost = self._ask_new(training, training.present, first=training.server_round == 1)
        training.nodes = [node for node in training.nodes if node.index not in lost]
        yield self._asked()
        self._show(training.result)

    def on_scores(self, scoring: Scoring) -> Steps:
        """Ask likewise in a run without rounds; in others all were asked before they trained."""
        if not self.run.rounds:
            self._ask_new(scoring, scoring.nodes, first=True)
        yield self._asked()
        self._show(scoring.result)

    def _ask_new(self, phase: Phase, present: Sequence[Node], *, first: bool) -> set[int]:
        """Ask nodes once; return the places of those that did not answer."""
        new = [node for node in present if node.index not in self._sites or node.index in self._failed]
        if not new:
            return set()
        failed = set[int]()
        by_id, silent = {node.node_id: node for node in new}, dict.fromkeys(new, checks.NO_ANSWER)
        for reply in phase.query({node: {SITE_IMAGES: True} for node in new}):
            node = by_id[reply.metadata.src_node_id]
            try:
                content = checks.opened(reply, (CONFIG,))
                site = SiteImages.from_config(checks.config_of(content), node.num_examples, BINS)
            except Refused as refused:
                if checks.is_lost(str(refused)):
                    silent[node] = str(refused)
                    continue
                if reply.has_error() and checks.OWNER not in str(refused):
                    failed.add(node.index)
                site = SiteImages(kept=str(refused))
                fields = {"event": "statistics", "node": node.index, "domain": node.domain}
                log.warning("%s tells no statistics of its images: %s", node, refused, extra=fields)
            self._sites[node.index] = node.domain, site
            del silent[node]
        for node, reason in silent.items():
            phase.leave_out(node, f"statistics of its images: {reason}", lost=True)
        self._failed = failed
        if lacking := self._lacking():
            all_here = self.run.engine.is_simulation or {*self.run.domains} <= {
                *self.run.config.allocation.held_out,
                *(node.domain for node in present),
            }
            if first and all_here and not silent and not self._failed:
                raise FederationError(lacking)
            log.warning("%s. The run goes on without, as a node may be late", lacking, extra={"event": "statistics"})
        return {node.index for node in silent}

    def _lacking(self) -> str:
        """Return what nodes need and none tells, with why; empty if there is nothing."""
        images = self._options.image_share
        sites, none = [site for _, site in self._sites.values()], f"none of {max(len(self._sites), 1)} nodes tells"
        if self._options.share == "nodes" and not any(site.reports for site in sites):
            why = some(sorted({site.kept for site in sites}) or [checks.NO_ANSWER], 3)
            return (
                f"statistics.share=nodes: {none} statistics of its images ({why}); see statistics.least_images, and "
                "the policies of the nodes' owners"
            )
        if images > 0 and not any(site.styles for site in sites):
            return (
                f"statistics.image_share={images:g}: {none} statistics of single images; see image_statistics of the "
                "policies of the nodes' owners, and the share"
            )
        return ""

    # --- what all nodes are sent, and what a run shows ---------------------------------------------

    def _asked(self) -> Asked:
        """Say what goes along, and send it."""
        records: dict[str, Arrays] = {}
        if self._options.share == "nodes":  # without rows while no node tells any
            records[SITE_IMAGES] = (self.of_all or FederationImages.of([])).to_arrays()
            if styles := [(node, site.styles) for node, (_, site) in sorted(self._sites.items()) if site.styles]:
                records[IMAGE_STYLES] = ImageStyles.of(styles).to_arrays()
        return Asked(lambda node: dict.fromkeys(records, True), records)

    def _show(self, result: RoundResult) -> None:
        """Hand on what the nodes report."""
        if self._sites:
            sites = [(node, domain, site) for node, (domain, site) in sorted(self._sites.items())]
            result.passing[show.KEY] = named(sites)


def federation_images(state: Arrays, domains: Sequence[str]) -> FederationImages | None:
    """Return means and variances of all nodes from what a checkpoint keeps of features; None if none tells any.

    Args:
        state: By name.
        domains: The domains of the run, in their order.
    """
    return _of_all(_read(state), domains)


def _read(state: Arrays) -> dict[int, tuple[str, SiteImages]]:
    kept = json.loads(state[SITES].tobytes()) if SITES in state else {}
    return {int(node): (domain, SiteImages(**site)) for node, (domain, site) in kept.items()}


def _of_all(sites: Mapping[int, tuple[str, SiteImages]], domains: Sequence[str]) -> FederationImages | None:
    places = {domain: place for place, domain in enumerate(domains)}
    reports = [(node, places[domain], site) for node, (domain, site) in sorted(sites.items()) if site.reports]
    return FederationImages.of(reports) if reports else None
