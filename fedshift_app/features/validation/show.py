"""Shown of validation parts: its best round by them, the round that it keeps, and its early end.

The best round has the highest accuracy on the nodes' validation parts: the mean over the domains, each the share of all
its nodes' images. The lower loss on them decides a tie, as a part of a few images is often all right from an early
round on; then the earlier round. A round without a loss comes after one that has it, and a round that lacks a domain
ranks below one that does not. A run ends early by the accuracy alone (``evaluate.patience``).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift_core.accuracies import average, mean, rank
from fedshift_core.kept_rounds import FOLDER
from fedshift_core.run_settings import RunSettings
from fedshift_core.shown import Column, History, Shown, chosen

KEY, LOSS = "validation", "validation_loss"
BEST = "best-validation"  # of ``keep``
IMAGES = "validation images"


def show(history: History) -> Shown:
    """Return the chosen rounds, the columns of the best ones, by test images too, and a line on an early end."""
    made = _fields(history)
    fields, columns, notes = {**history.results, **made}, dict[str, Column](), list[str]()
    partly = fields.get("partly_scored_rounds", 0)
    among = f", among the rounds scored on all test images ({partly} were not)" if partly else ""
    for mark, key, how in (("*", "best_test", "after seeing test results"), ("+", "best_validation", f"on {IMAGES}")):
        if (best_round := fields.get(key)) and fields.get("rounds") != 0:
            domains = best_round["domains"]
            columns[f"best round ({best_round['round']}){mark}"] = (domains, average(domains), "")
            notes.append(f"{mark} chosen {how}{among}")
    if notes and (kept := fields.get("chosen_round")):
        notes[-1] += f"; its model is kept: {kept['files'][0]}"
    early, facts = fields.get("stopped_early"), list[str]()
    if early:
        facts.append(
            f"stopped after round {early['after_round']} of {early['of']}: no better validation since round "
            f"{early['best_round']} (evaluate.patience={early['patience']})"
        )
    return Shown(made, columns=columns, notes=tuple(notes), facts=tuple(facts))


def _fields(history: History) -> dict[str, Any]:
    """Return the fields of ``results.json`` on chosen rounds; rounds that another run trained have no accuracy."""
    fields: dict[str, Any] = {}
    config, rounds = history.config, history.rounds
    best_round, gain = best(rounds), last_gain(rounds)
    if best_round is not None and best_round.accuracy:
        fields["best_validation"] = chosen(best_round, IMAGES)
    if config.keep == BEST and best_round is not None:
        files = [f"{FOLDER}/{kind}-{best_round.server_round:05d}.safetensors" for kind in ("weights", "knowledge")]
        scores = {"validation": of(best_round), "validation_avg": average(of(best_round)), "files": files}
        fields |= {"keep": BEST, "chosen_round": chosen(best_round, IMAGES) | scores}
    if gain is not None and is_over(config, rounds):
        fields["stopped_early"] = {
            "after_round": len(rounds),
            "of": config.rounds,
            "best_round": gain.server_round,
            "patience": config.evaluate.patience,
        }
    return fields


def is_over(config: RunSettings, history: Sequence[Any]) -> bool:
    """Return whether a run ends early after these rounds."""
    gain, patience = last_gain(history), config.evaluate.patience
    if not patience or gain is None or len(history) >= config.rounds:
        return False
    return bool(validated(history)[-1].server_round - gain.server_round >= patience)


def validated(history: Sequence[Any]) -> list[Any]:
    """Return the rounds scored on all test images and on validation parts."""
    return [result for result in history if result.evaluated_share == 1 and mean(of(result).values()) is not None]


def best(history: Sequence[Any]) -> Any | None:
    """Return the best round by validation; None if none was scored on validation parts."""
    return max(validated(history), key=lambda result: (*rank(of(result)), -_loss(result)), default=None)


def last_gain(history: Sequence[Any]) -> Any | None:
    """Return the first round with the highest accuracy, from which ``evaluate.patience`` counts; None as above."""
    return max(validated(history), key=lambda result: rank(of(result)), default=None)


def of(result: Any) -> Mapping[str, float | None]:
    """Return the accuracy of a round on validation parts by domain; empty where it has none."""
    return result.shown.get(KEY, {})  # type: ignore[no-any-return]


def _loss(result: Any) -> float:
    """Return the mean loss over the domains on validation parts; infinite where a domain has none."""
    losses = result.shown.get(LOSS, {})
    loss = average({domain: losses.get(domain) for domain, accuracy in of(result).items() if accuracy is not None})
    return math.inf if loss is None else loss
