"""Decides which runs form one table: names settings in which they differ, and warns of what else does."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedshift.lab.tables.results import contents
from fedshift.lab.tables.results.loading import Run
from fedshift_app.config import registry
from fedshift_core.errors import ConfigError
from fedshift_core.limits import some

#: Label of the row of a run whose values a search chose.
TUNED = "tuned"
#: Number of runs named for a value; the rest is counted.
_NAMED = 2
UNKNOWN = "not recorded"  # the value of what a run does not have, such as another method's package


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the settings in which runs differ, other than seed, method and the method's own settings.

    A value that the method sets (``own_settings``) counts as the experiment's value without the method. A value that a
    search chose counts as the value that it replaced.

    Returns:
        By dotted key the value of each run.
    """
    runs = [run.before_search for run in runs]
    plain = [run.plain_settings for run in runs]
    raw = [run.group_settings for run in runs]
    differences = {}
    for key in sorted({key for settings in raw for key in settings}):
        values = [settings.get(key) for settings in raw]
        if vary(values) and vary([settings.get(key) for settings in plain]):
            differences[key] = values
    return differences


def differences_line(runs: Sequence[Run], differences: dict[str, list[Any]]) -> str:
    """Return the differing settings in one line: each value with the runs that have it."""
    parts = []
    for key, values in differences.items():
        by_value = []
        for each in _distinct(values):
            names = [run.name for run, value in zip(runs, values, strict=True) if value == each]
            by_value.append(f"{shown(each)} ({some(names, _NAMED)})")
        parts.append(f"{key} is {' and '.join(by_value)}")
    return "; ".join(parts)


def other_numbers(text: str, first: Run, run: Run, instead: str) -> ConfigError:
    """Return the error of two runs that stand for the same numbers and have different ones.

    Args:
        text: What comes twice.
        first: The one run.
        run: The other.
        instead: What to do if one is the other's model scored again.
    """
    again = [
        f"{each.name} is the model of {each.scored_again} scored again (fedshift rescore), with scores of one round "
        f"alone; {instead}"
        for each in (first, run)
        if each.scored_again
    ]
    return ConfigError(f"{text}, with different numbers: {first.name} and {run.name}", remedy="\n".join(again))


def group_labels(runs: Sequence[Run], differences: dict[str, list[Any]]) -> list[str]:
    """Return the group of each run, named by the settings in which groups differ; empty if they do not."""
    plain = [run.before_search.plain_settings for run in runs]
    return [", ".join(f"{key}={shown(settings.get(key))}" for key in differences) for settings in plain]


def tuned_values(run: Run) -> str:
    """Return the values that a search chose for a run, each with the one that it replaced."""
    return ", ".join(f"{parameter(key)}={shown(run.config.get(key))} ({shown(was)})" for key, was in run.tuned.items())


def warnings(runs: Sequence[Run], labels: Sequence[str], repetitions: Sequence[Run] = ()) -> list[str]:
    """Return warnings: surroundings or images that differ, methods that ended with equal weights.

    Args:
        runs: The runs of a table.
        labels: Their rows.
        repetitions: Runs that repeat others and are not in the table; they show what changes no number.
    """
    lines = [
        f"not the same {key}: {differences_line(every, {key: values})}"
        for key, (every, values) in _other_surroundings(runs, repetitions).items()
        if not _witnesses(every, values)
    ]  # fmt: skip
    lines += contents.unlike(runs)
    lines += [run.contradiction for joined in runs for run in joined.singles if run.contradiction]
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        for other, its in zip(runs[:i], labels[:i], strict=True):
            if label != its and _suspicious(run, other):
                seed = run.results.seed
                lines.append(f"{its} and {label} ended with the same weights (seed {seed}): does one do nothing?")
    return lines


def harmless(runs: Sequence[Run], repetitions: Sequence[Run] = ()) -> list[str]:
    """Return notes on differing surroundings for which equal runs ended with the same weights."""
    return [
        f"not the same {key}, but {some(seen, _NAMED)} ran with each and ended with the same weights: "
        + differences_line(every, {key: values})
        for key, (every, values) in _other_surroundings(runs, repetitions).items()
        if (seen := _witnesses(every, values))
    ]


def _other_surroundings(runs: Sequence[Run], repetitions: Sequence[Run]) -> dict[str, tuple[list[Run], list[str]]]:
    """Return runs and repetitions with the value of each by key, for surroundings that differ between runs.

    A joined run whose parts differ is replaced by its parts.
    """
    singles = [part for run in runs for part in run.singles]
    by_key = {}
    for key in sorted({key for run in singles for key in run.surroundings}):
        if len(_distinct(_of_users(key, [_surrounding(run, key) for run in singles]))) > 1:
            every = [each for run in (*runs, *repetitions) for each in _alike(run, key)]
            by_key[key] = every, [_surrounding(run, key) for run in every]
    return by_key


def _alike(run: Run, key: str) -> tuple[Run, ...]:
    """Return a run; in place of a joined one its parts, if they differ in this surrounding."""
    return (run,) if len({_surrounding(part, key) for part in run.singles}) == 1 else run.singles


def _surrounding(run: Run, key: str) -> str:
    return run.surroundings.get(key, UNKNOWN)


def _of_users(key: str, values: list[str]) -> list[str]:
    """Return the values of runs that use a plugin's file: others have nothing to do with it."""
    return [value for value in values if value != UNKNOWN] if key.startswith("plugin ") else values


def _witnesses(runs: Sequence[Run], values: Sequence[str]) -> list[str]:
    """Return the method and seed of runs that ended with the same weights under several values.

    Joined runs are matched part by part.

    Returns:
        An empty list if they do not connect all values, or one of them ended with other weights.
    """
    made: dict[str, list[tuple[Run, str]]] = {}
    for run, value in zip(runs, values, strict=True):
        for part in run.singles:
            settings = part.row_settings | part.group_settings | {"seed": part.results.seed}
            made.setdefault(repr(sorted(settings.items())), []).append((part, value))
    joined = [{value} for value in _distinct(values)]
    witnesses = []
    for same in made.values():
        under = {value for _, value in same}
        if len(under) < 2:
            continue
        if len({run.results.weights_sha256 for run, _ in same}) > 1:
            return []
        witness = f"{registry.label(same[0][0].results.method)} seed {same[0][0].results.seed}"
        if witness not in witnesses:  # of several parts of a joined run
            witnesses.append(witness)
        touched = [group for group in joined if group & under]
        joined = [group for group in joined if not group & under] + [set[str]().union(*touched)]
    return witnesses if len(joined) == 1 else []


def parameter(key: str) -> str:
    """Return a parameter as rows name it: one of the method without its section."""
    return key.removeprefix("method.")


def shown(value: Any) -> str:
    """Return a value of a setting as YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{shown(item)}' for key, item in sorted(value.items()))}}}"
    return str(value)


def _suspicious(run: Run, other: Run) -> bool:
    """Return whether equal shared weights suggest that a method had no effect.

    Personal models may differ all the same; methods that share no weights leave them as they were.
    """
    ours, theirs = run.results, other.results
    if ours.weights_sha256 != theirs.weights_sha256 or ours.evaluated != theirs.evaluated or ours.seed != theirs.seed:
        return False
    return ours.evaluated == "global model" or ours.domains == theirs.domains


def vary(values: Sequence[Any]) -> bool:
    """Return whether values are not all equal."""
    return any(value is not values[0] and value != values[0] for value in values)


def _distinct(values: Iterable[Any]) -> list[Any]:
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return distinct
