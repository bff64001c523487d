"""Names the rows of a table, and says which values rows do not name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedshift.lab.tables.results.grouping import TUNED, differing, parameter, shown, vary
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import ADAPTATION, BASELINE, defaults_of, usual_settings
from fedshift_app.config import registry
from fedshift_app.config.recipes import parameter_of_key
from fedshift_core.registry import Method

#: Up to this number, every row of a method names all differing parameters; beyond it, only those that the experiment
#: has otherwise.
_IN_EVERY_ROW = 2
#: Settings whose absence is a value: a run that lacks them has its method's own modules or adaptation.
_OF_METHOD = ("modules", ADAPTATION)
UNNAMED = "where a row does not name it"

#: A method, and whether a search chose the values of the run.
Family = tuple[str, bool]


@dataclass(frozen=True)
class Naming:
    """What the rows of a table are named by.

    Attributes:
        keys: The settings in which runs of a method differ, by family.
        unnamed: By method, the values that rows do not name. Of more than two differing settings a row names only
            those that are not as the experiment has them.
        asked: By method, the settings of other sections that it sets in some of its runs only; each is in ``keys``.
    """

    keys: Mapping[Family, Sequence[str]] = field(default_factory=dict)
    unnamed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    asked: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def settings(self, run: Run) -> dict[str, Any]:
        """Return the settings that make a row of a run in its table."""
        return run.row_settings | {key: run.config.get(key) for key in self.asked.get(run.results.method, ())}

    def label(self, run: Run) -> str:
        """Return the row of a run: its method, and the parameters in which runs of that method differ.

        Runs whose values a search chose form separate rows, named ``tuned``.
        """
        settings = self.settings(run)
        known = {} if run.tuned else self.unnamed.get(run.results.method, {})
        named = [
            key for key in self.keys.get(_family(run), ())
            if key in settings and not (key in known and settings[key] == known[key])
        ]  # fmt: skip
        method = registry.label(run.results.method)
        tuned = [TUNED] if run.tuned else []
        return " ".join([method, *tuned, *(f"{parameter(key)}={shown(settings[key])}" for key in named)])

    def order(self, run: Run, methods: Sequence[str]) -> tuple[Any, ...]:
        """Return the sort key of a row: the baseline first, then registered methods, then parameters.

        Of a method with many parameters the row that names none is the first.
        """
        settings = self.settings(run)
        method = run.results.method
        varied = any(settings.get(key) != value for key, value in self.unnamed.get(method, {}).items())
        values = [(0, value, "") if _is_number(value) else (1, 0.0, shown(value)) for value in settings.values()]
        place = methods.index(method) if method in methods else len(methods)  # methods that are not installed come last
        return (method != BASELINE, place, method, bool(run.tuned), varied, values)


def naming(runs: Sequence[Run]) -> Naming:
    """Return what the rows of these runs are named by.

    The experiment of a method's first run decides which values are usual, so that rows of two experiments are never
    named alike.
    """
    asked = _asked_of_some(runs)
    keys: dict[Family, list[str]] = {}
    unnamed: dict[str, dict[str, Any]] = {}
    for family, members in _families(runs).items():
        method, searched = family
        settings = [Naming(asked=asked).settings(run) for run in members]
        absent = _absent_of_some(method, settings)
        keys[family] = _differing_keys(settings, (*absent, *asked.get(method, ())))
        if not searched and len(keys[family]) > _IN_EVERY_ROW:
            usual = _usual(members[0])
            known = {key: usual[key] for key in keys[family] if key in usual and key not in absent}
            unnamed |= {method: known} if known else {}
    return Naming(keys, unnamed, asked)


def own(runs: Sequence[Run], labels: Sequence[str], names: Naming) -> list[tuple[str, dict[str, Any]]]:
    """Return the settings in which methods differ from the others because they set them.

    Args:
        runs: The runs of a table.
        labels: Their rows.
        names: By what these are named.

    Returns:
        The settings, each time after whose they are: a method's, or those of some of its rows where others differ.
    """
    plain = [run.before_search for run in runs]
    counted = differing(plain)
    varies: dict[str, bool] = {}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    rows: dict[tuple[str, str, str], tuple[Any, list[str]]] = {}  # by method, key and value as text: value, rows
    for run, of_table, label in zip(plain, runs, labels, strict=True):
        method = run.results.method
        for key, value in run.in_effect.items():
            whose = found.setdefault(method, {method: {}})
            if key in names.asked.get(method, ()):
                known = {} if of_table.tuned else names.unnamed.get(method, {})
                if key in known and known[key] == value:
                    whose.setdefault(f"{method}, {UNNAMED}", {})[key] = value
                else:
                    _, having = rows.setdefault((method, key, shown(value)), (value, []))
                    having.extend([] if label in having else [label])
                continue
            if key not in varies:
                varies[key] = key not in counted and vary([other.config.get(key) for other in plain])
            if varies[key]:
                whose[method][key] = value
    for (method, key, _), (value, having) in rows.items():
        found[method].setdefault(", ".join(having), {})[key] = value
    return [
        (whose, dict(sorted(settings.items())))
        for by_whose in found.values() for whose, settings in by_whose.items() if settings
    ]  # fmt: skip


def by_hand(runs: Sequence[Run]) -> dict[str, dict[str, tuple[Any, str]]]:
    """Return common parameters of a method's runs that are not the usual ones and that no row names.

    A parameter of an adaptation or of modules over a method has their own default, where the experiment has none.
    Experiments outside conf/experiments are unknown and have none.

    Returns:
        By the rows that have them, the value and the usual one in words, by dotted key.
    """
    found: dict[str, dict[str, tuple[Any, str]]] = {}
    for (method, searched), members in _families(runs).items():
        if searched:
            continue
        settings = [run.row_settings for run in members]
        varied = _differing_keys(settings, _absent_of_some(method, settings))
        usual, stands_for = _usual(members[0]), _stands_for(method)
        found[f"{method}, in all its rows"] = {}
        for run in members:
            for key, value in run.row_settings.items():
                said = None if key in varied else _otherwise(run, key, usual, stands_for)
                if said is not None:
                    found.setdefault(_rows_with(members, run, key), {})[key] = value, said
    return {rows: values for rows, values in found.items() if values}


def _otherwise(run: Run, key: str, usual: Mapping[str, Any], stands_for: Mapping[str, str]) -> str | None:
    """Return the usual value of a parameter in words; None if the run has it, or none is known."""
    value = run.row_settings[key]
    others = _is_others(key, run.row_settings)
    if key in usual and not (others and usual.get(ADAPTATION) != run.row_settings[ADAPTATION]):
        return f"its experiment has {shown(usual[key])}" if value != usual[key] else None
    instead = stands_for.get(key, "")
    if instead in usual and not others:  # the parameter could not say this value
        return f"its experiment has {parameter(instead)}={shown(usual[instead])}"
    defaults = defaults_of(*_part(run, key))
    return f"its default is {shown(defaults[key])}" if key in defaults and value != defaults[key] else None


def _rows_with(members: Sequence[Run], run: Run, key: str) -> str:
    """Return in words which rows of a run's method have a parameter as it has it."""
    method = run.results.method
    if all(key in other.row_settings and _part(other, key) == _part(run, key) for other in members):
        return f"{method}, in all its rows"
    section, name = _part(run, key)
    if section == "modules":
        return f"{method} with {section}={name}, in all its rows"
    if section == "adapt" and _is_others(key, run.row_settings):
        return f"{method} with {ADAPTATION}={name}, in all its rows"
    return f"{method}, in all its rows that have it"


def _part(run: Run, key: str) -> tuple[str, str]:
    """Return the section of a parameter of an adaptation or of modules, and their name; of others two empty texts."""
    section, _, rest = key.partition(".")
    if section == "adapt" and key != ADAPTATION:
        return section, str(run.resolved.adapt.get("name", registry.NONE))
    return (section, rest.partition(".")[0]) if section == "modules" and rest else ("", "")


def _family(run: Run) -> Family:
    return run.results.method, bool(run.tuned)


def _families(runs: Iterable[Run]) -> dict[Family, list[Run]]:
    families: dict[Family, list[Run]] = {}
    for run in runs:
        families.setdefault(_family(run), []).append(run)
    return families


def _usual(run: Run) -> Mapping[str, Any]:
    return usual_settings(run.config["experiment"], run.config["dataset.name"], run.results.method)


def _differing_keys(settings: Sequence[Mapping[str, Any]], counted: Sequence[str]) -> list[str]:
    """Return the settings in which runs of a method differ.

    Args:
        settings: The settings of each run that make rows.
        counted: Settings that differ, whatever values are there.
    """
    keys = dict.fromkeys(key for of_run in settings for key in of_run)
    return [key for key in keys if key in counted or vary([of_run[key] for of_run in settings if key in of_run])]


def _absent_of_some(method: str, settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that tell runs of a method apart because some lack them.

    A parameter of a recipe stands for settings of other sections, but cannot say all their values: FedICON with
    ``adapt.name=t3a`` has this setting, and FedICON with its own adaptation has ``method.tta`` instead. Any other
    missing setting has no meaning in a run, as ``adapt.lr`` has none without adaptation.
    """
    stands_for = _stands_for(method)
    absent = []
    for key in dict.fromkeys((*_OF_METHOD, *stands_for)):
        having = [key in of_run and not _is_others(key, of_run) for of_run in settings]
        if any(having) and any(key not in of_run for of_run in settings):
            absent += [key, stands_for.get(key, key)]
    return [key for key in absent if not all(key in of_run for of_run in settings)]


def _is_others(key: str, settings: Mapping[str, Any]) -> bool:
    """Return whether a setting is a parameter of another adaptation than the method's own."""
    return key.startswith("adapt.") and key != ADAPTATION and settings.get(ADAPTATION, registry.NONE) != registry.NONE


def _stands_for(method: str) -> dict[str, str]:
    """Return the parameter of a recipe that stands for each setting of another section."""
    known: Method | None = registry.known(method)
    parameters = {} if known is None else parameter_of_key(known)
    return {key: name for key, name in parameters.items() if not key.startswith("method.")}


def _asked_of_some(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return, by method, the settings of other sections that it sets in some of its runs only.

    Runs that such a setting puts into different groups (:func:`differing`) need no rows for it.
    """
    by_method: dict[str, list[str]] = {}
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(run.results.method, []).append(run.before_search)
    for method, same in members.items():
        for key in sorted({key for run in same for key in run.in_effect}):
            by_plain: dict[str, list[Any]] = {}
            for run in same:
                by_plain.setdefault(shown(run.plain_settings.get(key)), []).append(run.config.get(key))
            if any(map(vary, by_plain.values())):
                by_method.setdefault(method, []).append(key)
    return by_method


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
