"""Summarizes a round for ``metrics.jsonl`` and a run for ``results.json``."""

import math
from collections.abc import Mapping
from typing import Any

from fedshift_app.run.files import AVERAGED_OVER
from fedshift_app.run.shown import of_features
from fedshift_core.accuracies import average, mean, rank
from fedshift_core.limits import few
from fedshift_core.losses import LOST, UNSCORED, Losses, Overall, unscored
from fedshift_core.rounds import LAST_ROUNDS, apart
from fedshift_core.shown import History, chosen
from fedshift_strategies.federation.context import RoundResult

_BELOW_ALL = 0.9999  # a share of the test images that rounds to 1 is still below 1
#: Fields of a round that each line has, and those that some have by their key there.
ALWAYS = ("losses", "nodes", "left_out", "bytes_up", "bytes_down", "seconds")
SOMETIMES = {
    "others": "others",
    "spread_over_nodes": "spread",
    "started_anew": "started_anew",
    "lost": "lost",
    "untrained": "untrained",
}
#: Fields of the summary that only some runs have.
OPTIONAL = (AVERAGED_OVER, "others", "spread_over_nodes", UNSCORED, LOST, "untrained")


def line_of(result: RoundResult) -> dict[str, Any]:
    """Return the line of a round in ``metrics.jsonl``."""
    line: dict[str, Any] = {
        "round": result.server_round,
        "accuracy": result.accuracy or None,
        "avg": average(result.accuracy),
        "test_loss": result.test_loss or None,
        **{name: getattr(result, name) for name in ALWAYS},
        "seconds": round(result.seconds, 3),
    }
    if result.evaluated_share < 1:
        line["evaluated_share"] = round(result.evaluated_share, 4)
    return line | {key: value for key, name in SOMETIMES.items() if (value := getattr(result, name))} | result.shown


def round_of(line: Mapping[str, Any]) -> RoundResult:
    """Return the round of a line, with a bounded number of losses and scores."""
    rest = {key: value for key, value in line.items() if key != "avg"}
    share, losses = rest.pop("evaluated_share", None), few(rest["losses"])
    given = {name: rest.pop(name) for name in ALWAYS} | {"others": few(rest.pop("others", {}))}
    given |= {name: rest.pop(key) for key, name in SOMETIMES.items() if key in rest}
    given |= {name: rest.pop(name) or {} for name in ("accuracy", "test_loss")}
    given["losses"] = {name: math.nan if value is None else value for name, value in losses.items()}
    given["evaluated_share"] = 1.0 if share is None else min(share, _BELOW_ALL)
    return RoundResult(rest.pop("round"), **given, shown=rest)


def summary(run: History) -> dict[str, Any]:
    """Return the summary of all rounds in percent: last-five mean, final and best round by domain, totals.

    Rounds without scores on all test images count in the totals only.
    """
    history, scored = run.rounds, run.scored
    last = scored[-LAST_ROUNDS:]
    final, others = last[-1].accuracy, last[-1].others
    over = [result.server_round for result in last]
    domains = {name: mean(result.accuracy[name] for result in last) for name in final}
    lacking = unscored({result.server_round: result.accuracy for result in last})
    overall = Losses(rounds=lacking).overall(domains)
    if len(final) == 1:
        overall = Overall(overall.avg, 0.0, overall.avg, next(iter(final)))
    fields = {
        "rounds": history[-1].server_round,
        "averaged_rounds": len(last),
        AVERAGED_OVER: over if apart(over, history[-1].server_round) else [],
        "domains": domains,
        "avg": overall.avg,
        "std": overall.std,
        "worst": overall.worst,
        "worst_domain": overall.worst_domain,
        "final": final,
        "partly_scored_rounds": sum(result.evaluated_share < 1 for result in history),
        "best_test": chosen(max(scored, key=lambda result: rank(result.accuracy)), "test images"),
        "others": {
            name: {domain: mean(each.others[name][domain] for each in last if name in each.others) for domain in by}
            for name, by in others.items()
        },
        "spread_over_nodes": {domain: mean(each.spread.get(domain) for each in last) for domain in last[-1].spread},
        "missing": [name for name, value in domains.items() if value is None],
        UNSCORED: lacking,
        LOST: {str(result.server_round): result.lost for result in history if result.lost},
        "untrained": {str(result.server_round): result.untrained for result in last if result.untrained},
        "bytes_up": sum(result.bytes_up for result in history),
        "bytes_down": sum(result.bytes_down for result in history),
    }
    known = {key: value for key, value in fields.items() if value or key not in OPTIONAL}
    return known | {key: value for _, shown in of_features(run) for key, value in shown.results.items()}


def finite(value: Any) -> Any:
    """Return a value in which None replaces numbers that JSON cannot hold (NaN, infinities), at any depth."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
