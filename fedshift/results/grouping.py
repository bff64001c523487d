"""Decides which runs form one table: names differing settings and separates those of a method."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedshift.results import contents
from fedshift.results.loading import Run
from fedshift.results.settings import BASELINE, usual_settings
from fedshift_app.config import registry
from fedshift_core.errors import ConfigError
from fedshift_core.limits import some

#: Label of the row of a run whose values a search chose.
TUNED = "tuned"
#: Number of runs named for a value; the rest is counted.
_NAMED = 2
UNKNOWN = "not recorded"  # the value of what a run does not have, such as another method's package
#: Up to this number, every row of a method names all differing parameters; beyond it, only those that the experiment
#: has otherwise.
_IN_EVERY_ROW = 2


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
        if _vary(values) and _vary([settings.get(key) for settings in plain]):
            differences[key] = values
    return differences


def own(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return, by method, the settings in which it differs from the others because it sets them."""
    runs = [run.before_search for run in runs]
    counted = differing(runs)
    by_method: dict[str, dict[str, Any]] = {}
    varies: dict[str, bool] = {}
    for run in runs:
        for key, value in run.in_effect.items():
            if key not in varies:
                varies[key] = key not in counted and _vary([other.config.get(key) for other in runs])
            if varies[key]:
                by_method.setdefault(run.results.method, {})[key] = value
    return {method: dict(sorted(settings.items())) for method, settings in by_method.items()}


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


def row_labels(runs: Sequence[Run], unnamed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the row of each run: its method, and the parameters in which runs of that method differ.

    If they are many, a row leaves out those with the value in ``unnamed`` (``usual_parameters``). Runs whose values a
    search chose form separate rows, named ``tuned``.
    """
    keys = {family: _varied(runs, family) for family in dict.fromkeys(map(_family, runs))}
    return [
        _label(run, keys[_family(run)], {} if run.tuned else unnamed.get(run.results.method, {})) for run in runs
    ]  # fmt: skip


def tuned_values(run: Run) -> str:
    """Return the values that a search chose for a run, each with the one that it replaced."""
    return ", ".join(f"{parameter(key)}={shown(run.config.get(key))} ({shown(was)})" for key, was in run.tuned.items())


def usual_parameters(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return, by method, the values of parameters that rows do not name.

    Of more than two differing parameters a row names only those that are not as the experiment has them. The
    experiment of the method's first run counts, so that rows of two experiments are never named alike.
    """
    by_method = {}
    for run in runs:
        if run.results.method in by_method or run.tuned:
            continue
        keys = _varied(runs, _family(run))
        usual = usual_settings(run.config["experiment"], run.config["dataset.name"], run.results.method)
        many = len(keys) > _IN_EVERY_ROW
        by_method[run.results.method] = {key: usual[key] for key in keys if many and key in usual}
    return {method: values for method, values in by_method.items() if values}


def by_hand(runs: Sequence[Run]) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return, by method, common parameters of its runs that differ from the experiment and no row names.

    Returns:
        The value of the runs and that of the experiment, by dotted key. Experiments outside conf/experiments are
        unknown and have none.
    """
    by_method: dict[str, dict[str, tuple[Any, Any]]] = {}
    for run in runs:
        if run.results.method in by_method or run.tuned:
            continue
        usual = usual_settings(run.config["experiment"], run.config["dataset.name"], run.results.method)
        varied = _varied(runs, _family(run))
        by_method[run.results.method] = {
            key: (value, usual[key])
            for key, value in run.row_settings.items()
            if key in usual and key not in varied and value != usual[key]
        }
    return {method: values for method, values in by_method.items() if values}


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


def _family(run: Run) -> tuple[str, bool]:
    """Return the family of a run's row: its method, and whether a search chose its values."""
    return run.results.method, bool(run.tuned)


def _varied(runs: Sequence[Run], family: tuple[str, bool]) -> list[str]:
    """Return the parameters, of method or modules, in which the runs of a method differ."""
    settings = [run.row_settings for run in runs if _family(run) == family]
    keys = dict.fromkeys(key for of_run in settings for key in of_run)
    return [key for key in keys if _vary([of_run[key] for of_run in settings if key in of_run])]


def _label(run: Run, keys: Sequence[str], known: Mapping[str, Any]) -> str:
    settings = run.row_settings
    named = [key for key in keys if key in settings and not (key in known and settings[key] == known[key])]
    method = registry.label(run.results.method)
    tuned = [TUNED] if run.tuned else []
    return " ".join([method, *tuned, *(f"{parameter(key)}={shown(settings[key])}" for key in named)])


def _suspicious(run: Run, other: Run) -> bool:
    """Return whether equal shared weights suggest that a method had no effect.

    Personal models may differ all the same; methods that share no weights leave them as they were.
    """
    ours, theirs = run.results, other.results
    if ours.weights_sha256 != theirs.weights_sha256 or ours.evaluated != theirs.evaluated or ours.seed != theirs.seed:
        return False
    return ours.evaluated == "global model" or ours.domains == theirs.domains


def _vary(values: Sequence[Any]) -> bool:
    """Return whether values are not all equal."""
    return any(value is not values[0] and value != values[0] for value in values)


def _distinct(values: Iterable[Any]) -> list[Any]:
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return distinct


def order(run: Run, methods: Sequence[str], unnamed: Mapping[str, Mapping[str, Any]]) -> tuple[Any, ...]:
    """Return the sort key of a row: the baseline first, then registered methods, then parameters.

    Of a method with many parameters (``unnamed``) the row that names none is the first.
    """
    known = unnamed.get(run.results.method, {})
    varied = any(run.row_settings.get(key) != value for key, value in known.items())
    values = [(0, value, "") if _is_number(value) else (1, 0.0, shown(value)) for value in run.row_settings.values()]
    method = run.results.method
    place = methods.index(method) if method in methods else len(methods)  # methods that are not installed come last
    return (method != BASELINE, place, method, bool(run.tuned), varied, values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
