"""The median over nodes of the length of their weights: a line in the log, and kept from round to round."""

import logging

import numpy as np

from fedshift_example.norms import NORM
from fedshift_strategies.features.base import LeaveOut, ServerFeature, Training
from fedshift_strategies.federation.checks import Known, Range
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.updates import Update

log = logging.getLogger("fedshift")

MEDIANS = "weight-norms/medians"


class WeightNorms(ServerFeature):
    prefixes = ("weight-norms/",)

    def train_bounds(self, node: Node, training: Training) -> Known:
        return {NORM: Range(0, 1e9, whole=False)}

    def after_training(
        self, updates: list[Update], training: Training, result: RoundResult, leave_out: LeaveOut
    ) -> None:
        median = float(np.median([update.metrics[NORM] for update in updates]))
        log.info("round %d: weights of length %.3f", training.server_round, median, extra={"event": "weight_norms"})
        self.state = {MEDIANS: np.append(self.state.get(MEDIANS, np.zeros(0)), median)}
