"""The median over nodes of the length of their weights: a line in the log, and kept from round to round."""

import logging

import numpy as np

from fedshift_example.norms import NORM
from fedshift_strategies.features.base import ServerFeature, Steps, Training
from fedshift_strategies.federation.checks import Range
from fedshift_strategies.federation.evaluation import Asked

log = logging.getLogger("fedshift")

MEDIANS = "weight-norms/medians"


class WeightNorms(ServerFeature):
    prefixes = ("weight-norms/",)

    def on_round(self, training: Training) -> Steps:
        yield Asked(bounds=lambda node: {NORM: Range(0, 1e9, whole=False)})
        median = float(np.median([update.metrics[NORM] for update in training.updates]))
        log.info("round %d: weights of length %.3f", training.server_round, median, extra={"event": "weight_norms"})
        self.state = {MEDIANS: np.append(self.state.get(MEDIANS, np.zeros(0)), median)}
