"""Says of which test images a real node's scores are missing: a domain's accuracy is then that of its other nodes.

A simulated node is replaced by another that sees the same test set. Test images of a real node are with it alone: while
it does not answer, the accuracy of its domain is over fewer images than before, and moves without any training.
"""

import logging

from fedshift_core.losses import MISSING_TESTS, images_line
from fedshift_strategies.features.base import Scoring, ServerFeature, Steps
from fedshift_strategies.federation import announced

log = logging.getLogger("fedshift")
#: By domain: test images that were scored, and those of all its nodes.
Missing = dict[str, list[int]]


class MissingTests(ServerFeature):
    """Writes into a round's line, by domain, how many of its test images were scored, where they are not all."""

    _said: Missing | None = None

    def on_scores(self, scoring: Scoring) -> Steps:
        """Compare the scored images with those that the nodes have; say so where it changes."""
        yield None
        evaluation, result = scoring.evaluation, scoring.result
        if evaluation.share < 1 or not evaluation.scores_tests:
            return
        missing: Missing = {}
        nodes = {node.index: node for node in (*evaluation.nodes, *scoring.all_nodes) if not node.shared_test}
        for domain, accuracy in result.accuracy.items():
            own = {i: n for i, node in nodes.items() if domain in node.domains and (n := node.tests_of(domain))}
            most = announced.most_scored([*own.values()], evaluation.max_images)
            scored = evaluation.scored_by(domain)
            absent = [n for i, n in own.items() if n <= most and i not in scored]
            if accuracy is not None and absent:
                number = sum(scored.values())
                missing[domain] = [number, number + sum(absent)]
        if missing:
            result.shown[MISSING_TESTS] = missing
        if missing != (self._said or {}):
            for domain, (number, of_all) in missing.items():
                fields = {"event": "missing_tests", "round": result.server_round, "domain": domain}
                log.warning("%s", images_line(domain, number, of_all), extra=fields)
        self._said = missing
