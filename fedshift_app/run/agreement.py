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
    differ = list(_differing(results, lines)) if lines else []
    contradicts = f"results.json contradicts metrics.jsonl: {some(differ, _MOST_NAMED)}" if differ else ""
    return "; ".join(filter(None, [changed_text(results.get("changed", ())), contradicts]))


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


def _differing(results: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each number of the results that its rounds do not have."""
    rounds = results.get("rounds")
    if isinstance(rounds, int) and rounds != lines[-1].get("round", len(lines)):
        yield f"{plural(rounds, 'round')} and {len(lines)}"
    of_round = {line.get("round"): line.get("accuracy") for line in lines}
    known: list[Any] = [line["accuracy"] for line in lines if "evaluated_share" not in line and line.get("accuracy")]
    scored = known[-LAST_ROUNDS:]
    if not scored or not all(isinstance(accuracy, Mapping) for accuracy in scored):
        return
    means = {name: mean(_number(accuracy.get(name)) for accuracy in scored) for name in scored[-1]}
    pairs = [("domains", results.get("domains"), means), ("final", results.get("final"), scored[-1])]
    for key, best in results.items():
        if key.startswith("best_") and isinstance(best, Mapping) and isinstance(number := best.get("round"), int):
            if number not in of_round:
                yield f"{key} is in round {number} of {len(lines)}"
            pairs.append((key, best.get("domains"), of_round.get(number)))
    for key, one, other in pairs:
        if not isinstance(one, Mapping) or not isinstance(other, Mapping):
            continue
        for name in dict.fromkeys([*one, *other]):
            first, second = (_number(numbers.get(name)) for numbers in (one, other))
            if first != second and (first is None or second is None or not abs(first - second) < _CLOSE):
                texts = ("missing" if number is None else f"{number:.2f}" for number in (first, second))
                yield f"{key} {plain(str(name), MOST_NAME)} is {' and '.join(texts)}"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
