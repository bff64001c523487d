"""Rules by which nodes weigh in the average, for any method: the section ``aggregation`` of a configuration."""

import math

import numpy as np

from fedshift_core.errors import FederationError
from fedshift_core.options.averaging import AggregationConfig
from fedshift_core.plural import plural
from strategies import f2dc
from strategies.federation.averaging import shares
from strategies.federation.updates import Update

EXACT = 1e-6  # by which the sum of weights may miss 1: that of float32 numbers does


def by_rule(config: AggregationConfig, updates: list[Update], domains: int) -> list[float] | None:
    """Return one weight per update, summing to 1; None where the method has a rule of its own.

    Args:
        config: The rule.
        updates: Those of a round.
        domains: How many domains the nodes of the federation hold, those that did not answer included; at least 1.
    """
    if config.weights == "method":
        return None
    if config.weights == "equal":
        return [1 / len(updates)] * len(updates)
    if config.weights == "samples":
        return shares([update.num_examples for update in updates])
    sizes = np.array([update.num_examples for update in updates], dtype=np.float64)
    held = np.array([update.node.class_counts for update in updates], dtype=np.float64)  # K x C
    if config.balance == "exact":
        discrepancy = f2dc.discrepancy(held, domains)
    else:
        discrepancy = f2dc.approximate_discrepancy(sizes, held.shape[1], domains)
    weights: list[float] = f2dc.domain_aware(sizes, discrepancy, config.alpha, config.beta).tolist()
    return weights


def check_weights(weights: list[float], updates: int, whose: str) -> list[float]:
    """Return the weights of a round's updates if an average can be made with them.

    Args:
        weights: One per update.
        updates: How many there are.
        whose: Who gave the weights, for the message.

    Raises:
        FederationError: If there is another number of them, or one is not finite or negative, or they do not sum to 1.
    """
    if len(weights) != updates:
        raise FederationError(
            f"weights of {whose}: {len(weights)} for {plural(updates, 'node')}, expected one for each"
        )
    for weight in weights:
        if not 0 <= weight < math.inf:
            raise FederationError(f"weights of {whose}: found {weight}, expected numbers from 0 to 1")
    if abs(math.fsum(weights) - 1) > EXACT:
        raise FederationError(f"weights of {whose} sum to {math.fsum(weights):.6g}, expected 1")
    return weights
