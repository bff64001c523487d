"""Summarizes a round for ``metrics.jsonl`` and a run for ``results.json``."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift_app.run import model_selection
from fedshift_app.run.scores import client_models, mean, mean_client_models
from fedshift_core.limits import plain
from fedshift_core.options.scoring import LAST_ROUNDS
from strategies.federation.context import RoundResult


def line_of(result: RoundResult) -> dict[str, Any]:
    """Return the line of a round in ``metrics.jsonl``."""
    line: dict[str, Any] = {
        "round": result.server_round,
        "accuracy": result.accuracy or None,
        "avg": mean(result.accuracy.values()),
        "test_loss": result.test_loss or None,
        "losses": result.losses,
        "nodes": result.nodes,
        "left_out": result.left_out,
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "seconds": round(result.seconds, 3),
    }
    if result.evaluated_share < 1:
        line["evaluated_share"] = round(result.evaluated_share, 4)
    if result.validation:
        line["validation"] = result.validation
    if result.others:
        line["others"] = result.others
    if result.spread:
        line["spread_over_nodes"] = result.spread
    if result.profile:
        line["profile"] = result.profile
    if result.started_anew:
        line["started_anew"] = result.started_anew
    if result.lost:
        line["lost"] = result.lost
    if result.untrained:
        line["untrained"] = result.untrained
    if result.clients is not None:
        line["client_models"] = client_models(result.clients)
        if result.clients.own:
            line["client_models"]["own"] = {str(index): value for index, value in result.clients.own.items()}
    return line


def summary(history: list[RoundResult]) -> dict[str, Any]:
    """Return the summary of all rounds in percent: last-five mean, final and best round by domain, totals.

    Rounds without scores on all test images count in the totals only. With validation parts, ``best_validation`` is
    the first round with the highest average over the domains on them.
    """
    scored = fully_scored(history)
    accuracies = [result.accuracy for result in scored]
    names = list(accuracies[-1])
    last = accuracies[-LAST_ROUNDS:]
    domains = {name: mean(accuracy[name] for accuracy in last) for name in names}
    known = [value for value in domains.values() if value is not None]
    best = max(scored, key=lambda result: model_selection.rank(result.accuracy))
    worst = min((name for name in names if domains[name] is not None), key=lambda n: domains[n] or 0.0, default=None)
    return {
        "rounds": len(history),
        "averaged_rounds": len(last),
        "domains": domains,
        "avg": mean(known),
        "std": statistics.stdev(known) if len(known) > 1 else 0.0,
        "worst": None if worst is None else domains[worst],
        "worst_domain": worst,
        "final": accuracies[-1],
        "partly_scored_rounds": sum(result.evaluated_share < 1 for result in history),
        "best_test": model_selection.chosen(best, "test images"),
        **_optional_fields(history),
        "missing": [name for name in names if domains[name] is None],
        **({"lost": lost} if (lost := lost_nodes(history)) else {}),
        **({"untrained": untrained} if (untrained := untrained_nodes(scored[-LAST_ROUNDS:])) else {}),
        "bytes_up": sum(result.bytes_up for result in history),
        "bytes_down": sum(result.bytes_down for result in history),
    }


def fully_scored(history: list[RoundResult]) -> list[RoundResult]:
    """Return the rounds that were scored on all test images."""
    return [result for result in history if result.accuracy and result.evaluated_share == 1]


def _optional_fields(history: list[RoundResult]) -> dict[str, Any]:
    """Return fields that only some runs have, such as the best validation round or scores of client models."""
    fields: dict[str, Any] = {}
    if (best := model_selection.best(history)) and best.accuracy:  # rounds that another run trained have no accuracy
        fields["best_validation"] = model_selection.chosen(best, "validation images")
    scored = [result.others for result in fully_scored(history)][-LAST_ROUNDS:]
    if scored[-1]:
        fields["others"] = {
            name: {domain: mean(others[name][domain] for others in scored if name in others) for domain in by_domain}
            for name, by_domain in scored[-1].items()
        }
    spreads = [result.spread for result in fully_scored(history)][-LAST_ROUNDS:]
    if spreads[-1]:
        fields["spread_over_nodes"] = {domain: mean(spread.get(domain) for spread in spreads) for domain in spreads[-1]}
    clients = [result.clients for result in history if result.clients is not None]
    if clients:
        fields["client_models"] = mean_client_models(clients)
    return fields


def lost_nodes(history: Sequence[RoundResult]) -> dict[str, list[int]]:
    """Return the nodes that were left out through no fault of their own, by round. Rounds without any are omitted."""
    return {str(result.server_round): result.lost for result in history if result.lost}


def untrained_nodes(history: Sequence[RoundResult]) -> dict[str, list[int]]:
    """Return the nodes that had not trained their own model parts yet, by round; rounds without any are omitted."""
    return {str(result.server_round): result.untrained for result in history if result.untrained}


def untrained_line(untrained: Mapping[str, Sequence[int]], averaged: int, *, counts: bool) -> str:
    """Return a text on the rounds of a mean in which some nodes had not trained yet.

    Args:
        untrained: Their indices by round (``results.json``, key ``untrained``).
        averaged: Number of rounds of the mean.
        counts: Whether these nodes were scored (``evaluate.untrained``).
    """
    most = max(len(nodes) for nodes in untrained.values())
    nodes_text = "1 node" if most == 1 else f"up to {most} nodes" if len(untrained) > 1 else f"{most} nodes"
    treatment = "but were scored" if counts else "and were not scored"
    return f"in {len(untrained)} of {averaged} averaged rounds {nodes_text} had not trained yet {treatment}"


def lost_text(lost: Mapping[str, Sequence[int]]) -> str:
    """Return a short line on the nodes that a run did without, by round (``results.json``, key ``lost``)."""
    most = 5
    rounds = [f"round {number}: node {', '.join(map(str, nodes))}" for number, nodes in list(lost.items())[:most]]
    more = f"; and {len(lost) - most} more rounds" if len(lost) > most else ""
    return plain(f"nodes were left out through no fault of their own ({'; '.join(rounds)}{more})")


def finite(value: Any) -> Any:
    """Return a value in which None replaces numbers that JSON cannot hold (NaN, infinities), at any depth."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
