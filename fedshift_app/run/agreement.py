"""Checks that ``results.json`` of a run agrees with its ``metrics.jsonl``: a file may be replaced, edited, cut off."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedshift_core.accuracies import mean
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.options.scoring import LAST_ROUNDS
from fedshift_core.plural import plural

#: Percentage points that a sum in another order may change.
_CLOSE = 1e-6
#: Number of contradictions that a message names; it counts the rest.
_MOST_NAMED = 3


def contradictions(results: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """Return one line that names where the results contradict the rounds. Empty if they agree or there are no rounds.

    Args:
        results: The content of ``results.json``.
        lines: The full lines of ``metrics.jsonl``.
    """
    if not lines:
        return ""
    differ = list(_differing(results, lines))
    more = f", and {len(differ) - _MOST_NAMED} more" if len(differ) > _MOST_NAMED else ""
    which = f"{', '.join(differ[:_MOST_NAMED])}{more}"
    return f"results.json contradicts metrics.jsonl: {which}" if differ else ""


def _differing(results: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rounds = results.get("rounds")
    if isinstance(rounds, int) and rounds != lines[-1].get("round", len(lines)):
        yield f"{plural(rounds, 'round')} and {len(lines)}"
    accuracies = [
        line["accuracy"]
        for line in lines
        if isinstance(line.get("accuracy"), Mapping) and line["accuracy"] and "evaluated_share" not in line
    ]
    if not accuracies:
        return
    last = accuracies[-LAST_ROUNDS:]
    means = {name: mean(_number(accuracy.get(name)) for accuracy in last) for name in accuracies[-1]}
    yield from _unequal("domains", results.get("domains"), means)
    yield from _unequal("final", results.get("final"), accuracies[-1])
    for key in (key for key in results if key.startswith("best_")):
        best = results.get(key)
        number = best.get("round") if isinstance(best, Mapping) else None
        if not isinstance(best, Mapping) or not isinstance(number, int):
            continue
        if line := next((line for line in lines if line.get("round") == number), None):
            yield from _unequal(key, best.get("domains"), line.get("accuracy"))
        else:
            yield f"{key} is in round {number} of {len(lines)}"


def _unequal(key: str, in_results: Any, in_rounds: Any) -> Iterator[str]:
    """Yield a text for each domain whose two numbers differ."""
    if not isinstance(in_results, Mapping) or not isinstance(in_rounds, Mapping):
        return
    for name in dict.fromkeys([*in_results, *in_rounds]):
        first, second = _number(in_results.get(name)), _number(in_rounds.get(name))
        same = first == second or (first is not None and second is not None and abs(first - second) < _CLOSE)
        if not same:
            yield f"{key} {plain(str(name), MOST_NAME)} is {_shown(first)} and {_shown(second)}"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _shown(value: float | None) -> str:
    return "missing" if value is None else f"{value:.2f}"
