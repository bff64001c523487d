"""Rules by which nodes weigh in the average, for any method: the section ``aggregation`` of a configuration.

With secure sums a server and its nodes work weights out alike, by what nodes state of their images (:func:`factors`).
"""

import math
from collections.abc import Sequence

import numpy as np

from fedshift_core.arrays import Floats
from fedshift_core.errors import FederationError
from fedshift_core.plural import plural
from fedshift_core.run_settings import RunSettings, WithRooms
from fedshift_core.secure.group import ANSWERS
from fedshift_core.secure.statement import Statement
from fedshift_strategies.federation.averaging import shares
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods import f2dc

EXACT = 1e-6  # by which the sum of weights may miss 1: that of float32 numbers does


def by_rule(config: WithRooms, updates: list[Update], domains: int) -> list[float] | None:
    """Return one weight per update, summing to 1; None where the method has a rule of its own.

    Args:
        config: The rule.
        updates: Those of a round.
        domains: How many domains the nodes of the federation hold, those that did not answer included; at least 1.
    """
    images = [update.num_examples for update in updates]
    if config.weights != "domain-aware":
        return _by_images(config, images, 0, domains)
    held = np.array([update.node.class_counts for update in updates], dtype=np.float64)  # K x C
    if config.balance == "exact":
        return _domain_aware(config, images, f2dc.discrepancy(held, domains))
    return _by_images(config, images, held.shape[1], domains)


def _by_images(config: WithRooms, images: Sequence[int], classes: int, domains: int) -> list[float] | None:
    """Return weights that go by the nodes' numbers of images at most; None where the method has a rule of its own."""
    if config.weights == "method":
        return None
    if config.weights == "equal":
        return [1 / len(images)] * len(images)
    if config.weights == "samples":
        return shares([*images])
    sizes = np.array(images, dtype=np.float64)
    return _domain_aware(config, images, f2dc.approximate_discrepancy(sizes, classes, domains))


def _domain_aware(config: WithRooms, images: Sequence[int], discrepancy: Floats) -> list[float]:
    sizes = np.array(images, dtype=np.float64)
    weights: list[float] = f2dc.domain_aware(sizes, discrepancy, config.alpha, config.beta).tolist()
    return weights


def factors(config: RunSettings, statements: Sequence[Statement], purpose: str, *, alike: bool) -> tuple[float, ...]:
    """Return by what the numbers of each node of a secure sum are multiplied, 1 for the largest.

    ``federation.max_images`` goes by the nodes of the sum, ``domain-aware`` by the domains of the configuration: a
    node knows no others.

    Args:
        config: The run's.
        statements: Of the nodes, in their order.
        purpose: What is summed, of ``group.PURPOSES``; answers weigh by the images that they are of.
        alike: Whether the method's own rule is that nodes weigh the same.
    """
    images = [statement.images for statement in statements]
    if purpose == ANSWERS:
        weights = [float(min(number, config.evaluate.bn_images)) for number in images]
    else:
        most = config.federation.max_images * float(np.median(images))
        domains = len({*config.dataset.domains} - {*config.allocation.held_out})
        capped = [int(min(number, most)) for number in images]
        rule = _by_images(config.aggregation, capped, len(statements[0].classes), domains)
        weights = rule or [1.0 if alike else float(number) for number in capped]
    largest = max(weights)
    return tuple(weight / largest for weight in weights) if largest > 0 else (0.0,) * len(weights)


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
