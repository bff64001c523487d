"""Rules by which nodes weigh in the average, for any method: the section ``aggregation`` of a configuration."""

import numpy as np

from strategies import f2dc
from strategies.federation.averaging import shares
from strategies.federation.updates import Update
from strategies.settings import AggregationConfig


def by_rule(config: AggregationConfig, updates: list[Update]) -> list[float] | None:
    """Return one weight per update, summing to 1; None where the method has a rule of its own."""
    if config.weights == "method":
        return None
    if config.weights == "equal":
        return [1 / len(updates)] * len(updates)
    if config.weights == "samples":
        return shares([update.num_examples for update in updates])
    sizes = np.array([update.num_examples for update in updates], dtype=np.float64)
    held = np.array([update.node.class_counts for update in updates], dtype=np.float64)  # K x C
    if config.balance == "approximate":
        held = np.where(held.sum(axis=0) > 0, sizes[:, None], 0.0)  # n_k / N for every class that somebody holds
    domains = len({update.node.domain for update in updates})
    weights: list[float] = f2dc.domain_aware(
        sizes, f2dc.discrepancy(held, domains), config.alpha, config.beta
    ).tolist()  # fmt: skip
    return weights
