"""Checks that the files of a run agree: ``results.json`` with ``metrics.jsonl``, ``config.yaml`` with the checkpoints.

A file may be replaced, edited, cut off.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift_app.config.keys import FREE, flat
from fedshift_app.run import checkpoints
from fedshift_app.run.files import CONFIG_FILE, changed_text
from fedshift_core.accuracies import mean
from fedshift_core.limits import MOST_NAME, as_found, plain, some
from fedshift_core.plural import plural
from fedshift_core.rounds import LAST_ROUNDS

#: Percentage points that a sum in another order may change.
_CLOSE = 1e-6
#: Number of contradictions that a message names; it counts the rest.
_MOST_NAMED = 3


def contradictions(results: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """Return one line on settings that changed within the run, and where its results contradict its rounds.

    It is empty for a run of one configuration whose files agree, or without rounds.

    Args:
        results: The content of ``results.json``.
        lines: The full lines of ``metrics.jsonl``.
    """
    changed = _changed(results)
    if not lines:
        return changed
    differ = list(_differing(results, lines))
    more = f", and {len(differ) - _MOST_NAMED} more" if len(differ) > _MOST_NAMED else ""
    which = f"{', '.join(differ[:_MOST_NAMED])}{more}"
    return "; ".join(filter(None, [changed, f"results.json contradicts metrics.jsonl: {which}" if differ else ""]))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that decide numbers and differ, by dotted key: the value before and the one now."""
    values_before, values = flat(before), flat(now)
    return {
        key: [values_before.get(key), values.get(key)]
        for key in sorted(values_before.keys() | values.keys())
        if key not in FREE
        and values_before.get(key) != values.get(key)
        and not (key == "rounds" and now["rounds"] > before["rounds"])
        # Only the run knows the SHA-256 of fetched weights.
        and not (key == "model.weights_sha256" and not values.get(key))
    }


def edited(path: Path, recorded: Mapping[str, Any]) -> str:
    """Return how ``config.yaml`` of a run differs from what its last checkpoint was trained with; empty if it agrees.

    Args:
        path: The run folder.
        recorded: The content of the file, checked.
    """
    trained = checkpoints.last_config(path / checkpoints.FOLDER)
    if not trained:
        return ""
    differ = differences(*({**each["resolved"], "arithmetic": each.get("arithmetic")} for each in (trained, recorded)))
    texts = [f"{key} {as_found(before)} -> {as_found(now)}" for key, (before, now) in differ.items()]
    return f"{CONFIG_FILE} was edited after the run: {some(texts, _MOST_NAMED)}" if texts else ""


def _changed(results: Mapping[str, Any]) -> str:
    try:
        return changed_text(results["changed"]) if results.get("changed") else ""
    except (LookupError, TypeError, ValueError, AttributeError):
        return "results.json: changed is not what a run writes"


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
