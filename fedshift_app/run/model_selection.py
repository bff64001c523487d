"""Rounds that a run keeps for their validation accuracy (``keep``) or on request (``keep_rounds``), and its early end.

Nodes report how many of how many images were right, and the sum of their losses; the server sees no image. The rounds
in the run folder decide all this, so a resumed run chooses and ends as it would have without the interruption.
"""

from collections.abc import Sequence

from fedshift_app.config.sections import RunConfig
from fedshift_app.features.validation.show import BEST as BEST
from fedshift_app.features.validation.show import best as best
from fedshift_app.features.validation.show import is_over as is_over
from fedshift_core.errors import FederationError
from fedshift_core.kept_rounds import kept_rounds
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.roster import Node


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
