"""Chooses the round of a run (``keep``), further rounds to keep (``keep_rounds``) and its end (``evaluate.patience``).

The best round by validation has the highest accuracy on the nodes' validation parts: the mean over the domains, each
the share of all its nodes' images. The lower loss on them decides a tie, then the earlier round. A round that lacks a
domain ranks below one that does not. A run ends early by the accuracy alone. Nodes report how many of how many images
were right, and the sum of their losses; the server sees no image. The rounds in the run folder decide all this, so a
resumed run chooses and ends as it would have without the interruption.
"""

import logging
from collections.abc import Sequence
from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_app.features.validation import server as validation
from fedshift_app.run import checkpoints
from fedshift_core.accuracies import average
from fedshift_core.errors import FederationError
from fedshift_core.kept_rounds import kept_rounds
from fedshift_strategies.features.base import chosen
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.roster import Node

BEST = "best-validation"  # of ``keep``
log = logging.getLogger("fedshift")
best = validation.best


def needed(config: RunConfig, history: Sequence[RoundResult]) -> tuple[int, ...]:
    """Return the rounds whose checkpoints a run keeps in addition to ``kept_rounds``.

    They are those of ``keep_rounds`` so far. A run that keeps the best round also keeps the best round up to each round
    that it can go back to, so that it then has the model that was the best by that round.
    """
    kept = {server_round for server_round in config.keep_rounds if server_round <= len(history)}
    if config.keep == BEST and history:
        candidates = (best(history[:server_round]) for server_round in {*kept_rounds(len(history)), *kept})
        kept |= {result.server_round for result in candidates if result is not None}
    return tuple(sorted(kept))


def is_over(config: RunConfig, history: Sequence[RoundResult]) -> bool:
    """Return whether a run ends early after these rounds."""
    validated, gain = validation.validated(history), validation.last_gain(history)
    if not config.evaluate.patience or gain is None or len(history) >= config.rounds:
        return False
    return validated[-1].server_round - gain.server_round >= config.evaluate.patience


def check_nodes(config: RunConfig, nodes: Sequence[Node]) -> None:
    """Refuse to choose a round by the validation parts of nodes that have none.

    Raises:
        FederationError: If no node has one.
    """
    if (config.keep == BEST or config.evaluate.patience) and not any(node.num_validation for node in nodes):
        key = "keep=best-validation" if config.keep == BEST else f"evaluate.patience={config.evaluate.patience}"
        raise FederationError(
            f"{key}: no node has a validation part; allocation.validation_fraction="
            f"{config.allocation.validation_fraction:g} of their training images is less than one image, or than "
            "least_images of their owners' policies"
        )


def results(config: RunConfig, history: Sequence[RoundResult]) -> dict[str, Any]:
    """Return the fields of ``results.json`` on the chosen round and on an early end; empty without both."""
    fields: dict[str, Any] = {}
    best_result = best(history)
    if config.keep == BEST and best_result is not None:
        files = (f"{kind}-{best_result.server_round:05d}.safetensors" for kind in ("weights", "knowledge"))
        fields["keep"] = BEST
        fields["chosen_round"] = chosen(best_result, "validation images") | {
            "validation": validation.of(best_result),
            "validation_avg": average(validation.of(best_result)),
            "files": [f"{checkpoints.FOLDER}/{name}" for name in files],
        }
    gain = validation.last_gain(history)
    if gain is not None and is_over(config, history):
        fields["stopped_early"] = {
            "after_round": len(history),
            "of": config.rounds,
            "best_round": gain.server_round,
            "patience": config.evaluate.patience,
        }
    return fields
