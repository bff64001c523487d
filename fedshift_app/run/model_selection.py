"""Which round a run is for (``keep``), which more it keeps (``keep_rounds``), and when it ends (``evaluate.patience``).

The best round by validation is the one with the highest accuracy on the nodes' validation parts, as the mean over the
domains, each the share of all its nodes' images; the earlier of equals; a round that lacks a domain comes below one
that does not. Nodes tell how many of how many were right, and the server knows no image. All this follows from the
rounds that are in the run folder, so a run that is resumed chooses and ends as it would have.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_app.run import checkpoints
from fedshift_app.run.scores import mean
from fedshift_core.errors import FederationError
from fedshift_core.kept_rounds import kept_rounds
from strategies.federation.context import RoundResult
from strategies.federation.roster import Node

BEST = "best-validation"  # of ``keep``
log = logging.getLogger("fedshift")


def best(history: Sequence[RoundResult]) -> RoundResult | None:
    """Return the best of some rounds by validation; None where none was scored on validation parts."""
    validated = _validated(history)
    return max(validated, key=lambda result: rank(result.validation)) if validated else None


def needed(config: RunConfig, history: Sequence[RoundResult]) -> tuple[int, ...]:
    """Return the rounds whose checkpoints a run keeps beside those it goes back to by itself.

    They are those of ``keep_rounds`` so far; and where the run is for the best round, the best until each that it can
    go back to, so that a run that does so has the model that was the best by then.
    """
    asked = {server_round for server_round in config.keep_rounds if server_round <= len(history)}
    if config.keep == BEST and history:
        found = (best(history[:server_round]) for server_round in {*kept_rounds(len(history)), *asked})
        asked |= {result.server_round for result in found if result is not None}
    return tuple(sorted(asked))


def is_over(config: RunConfig, history: Sequence[RoundResult]) -> bool:
    """Tell whether a run ends early, after these rounds."""
    validated, found = _validated(history), best(history)
    if not config.evaluate.patience or found is None or len(history) >= config.rounds:
        return False
    return validated[-1].server_round - found.server_round >= config.evaluate.patience


def check_nodes(config: RunConfig, nodes: Sequence[Node]) -> None:
    """Refuse to choose a round by the validation parts of nodes that have none.

    Raises:
        FederationError: If no node has one.
    """
    if (config.keep == BEST or config.evaluate.patience) and not any(node.num_validation for node in nodes):
        key = "keep=best-validation" if config.keep == BEST else f"evaluate.patience={config.evaluate.patience}"
        raise FederationError(
            f"{key}: no node has a validation part; allocation.validation_fraction="
            f"{config.allocation.validation_fraction:g} of their training images is less than one image"
        )


def results(config: RunConfig, history: Sequence[RoundResult]) -> dict[str, Any]:
    """Return what ``results.json`` says of the chosen round and of an early end; empty where there is neither."""
    found: dict[str, Any] = {}
    result = best(history)
    if config.keep == BEST and result is not None:
        files = (f"{kind}-{result.server_round:05d}.safetensors" for kind in ("weights", "knowledge"))
        found["keep"] = BEST
        found["chosen_round"] = chosen(result, "validation images") | {
            "validation": result.validation,
            "validation_avg": mean(result.validation.values()),
            "files": [f"{checkpoints.FOLDER}/{name}" for name in files],
        }
    if result is not None and is_over(config, history):
        found["stopped_early"] = {
            "after_round": len(history), "of": config.rounds, "best_round": result.server_round,
            "patience": config.evaluate.patience,
        }  # fmt: skip
    return found


def chosen(result: RoundResult, on: str) -> dict[str, Any]:
    """Return a chosen round with its accuracy on the test images."""
    return {
        "round": result.server_round,
        "chosen_on": on,
        "domains": result.accuracy,
        "avg": mean(result.accuracy.values()),
    }


def rank(accuracy: Mapping[str, float | None]) -> tuple[int, float]:
    """Order rounds by average accuracy; a round that lacks a domain comes below one that does not."""
    known = [value for value in accuracy.values() if value is not None]
    return len(known), sum(known)


def stop_told(stopped: Mapping[str, Any]) -> str:
    """Return in words where and why a run ended early (``results.json``, key ``stopped_early``)."""
    return (
        f"stopped after round {stopped['after_round']} of {stopped['of']}: no better validation since round "
        f"{stopped['best_round']} (evaluate.patience={stopped['patience']})"
    )


def _validated(history: Sequence[RoundResult]) -> list[RoundResult]:
    """Return the rounds that were scored on all test images, and on validation parts."""
    return [
        result for result in history if result.evaluated_share == 1 and mean(result.validation.values()) is not None
    ]
