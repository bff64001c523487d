"""Names the rows of a table, and says which values rows do not name."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedshift.lab.tables.results.differences import assigned, differences, differing, shown, vary
from fedshift.lab.tables.results.grouping import grouped
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import ADAPTATION, BASELINE, defaults_of, usual_settings
from fedshift_app.config import registry

TUNED = "tuned"  # in the label of a run whose values a search chose
UNNAMED = "where a row does not name it"
_IN_EVERY_ROW = 2  # up to this number, each row names all differing parameters; beyond it, those that are not usual
_OF_METHOD = ("modules", ADAPTATION)  # a run that lacks them has its method's own, which is a value

Family = tuple[str, bool]  # a method, and whether a search chose the values of the run


class Names:
    """Names each row by its method and by the parameters in which the runs of that method differ.

    Runs of other settings never have the same name: they would make one row.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        """Find what tells the runs of each method apart; a row's name does not depend on which rows are shown."""
        self._asked = _asked_of_some(runs)
        self._keys: dict[Family, list[str]] = {}
        self._usual: dict[str, dict[str, Any]] = {}
        self._labels: dict[str, str] = {}
        for family, members in grouped((_family(run), run) for run in runs).items():
            kinds = {self._kind(run): self.settings(run) for run in members}
            method, tuned = family
            keys = self._keys[family] = _varied(list(kinds.values()), self._asked.get(method, ()))
            if not tuned and len(keys) > _IN_EVERY_ROW:
                usual = _usual(members[0])
                everywhere = {key for key in keys if all(key in settings for settings in kinds.values())}
                self._usual[method] = {
                    key: usual[key] for key in keys if key in usual and (key in everywhere or key not in _OF_METHOD)
                }
            known = self._usual.get(method, {}) if not tuned else {}
            named = {
                kind: [key for key in keys if key in settings and not (key in known and settings[key] == known[key])]
                for kind, settings in kinds.items()
            }
            _tell_apart(kinds, named)
            first = [registry.label(method), *([TUNED] if tuned else [])]
            for kind, settings in kinds.items():
                self._labels[kind] = " ".join([*first, *(assigned({key: settings[key]}) for key in named[kind])])

    def _kind(self, run: Run) -> str:
        return repr((_family(run), sorted(self.settings(run).items())))

    def settings(self, run: Run) -> dict[str, Any]:
        """Return the settings that make a row of a run in its table."""
        return run.row_settings | {key: run.config.get(key) for key in self._asked.get(run.results.method, ())}

    def label(self, run: Run) -> str:
        """Return the row of a run: its method, and the parameters in which runs of that method differ."""
        return self._labels[self._kind(run)]

    def order(self, run: Run, methods: Sequence[str]) -> tuple[Any, ...]:
        """Return the sort key of a row: the baseline first, then registered methods, then parameters."""
        settings, method = self.settings(run), run.results.method
        varied = any(settings.get(key) != value for key, value in self._usual.get(method, {}).items())
        values = [
            (0, value, "") if isinstance(value, int | float) and not isinstance(value, bool) else (1, 0.0, shown(value))
            for value in settings.values()
        ]
        place = methods.index(method) if method in methods else len(methods)  # what is not installed comes last
        return (method != BASELINE, place, method, bool(run.tuned), varied, values)

    def notes(self, runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
        """Return which values rows do not name, were set by hand in all rows of a method, or a method asks for."""
        asked = _asked_for(runs, labels, self._asked)
        methods = {run.results.method for run in runs}
        unnamed = [
            f"{name}, {UNNAMED}: {assigned(values)}"
            for name, values in self._usual.items()
            if values and name in methods
        ]
        for (method, tuned), members in grouped((_family(run), run) for run in runs).items():
            by_hand: dict[str, None] = {}
            for run in () if tuned else members:
                usual = {**defaults_of(run.config), **_usual(run)}
                for key, value in run.row_settings.items():
                    if usual and key not in self._keys[method, tuned] and usual.get(key, usual) != value:
                        instead = f"instead of {shown(usual[key])}" if key in usual else "not in its experiment"
                        by_hand[f"{assigned({key: value})} ({instead})"] = None
            unnamed += [f"{method}, in all its rows that have it: {', '.join(by_hand)}"] if by_hand else []
        return unnamed + [
            f"{whose}, as the method or its experiment asks: {assigned(values)}" for whose, values in asked.items()
        ]


def _asked_for(
    runs: Sequence[Run], labels: Sequence[str], of_some: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Return the settings that methods ask for and others have otherwise, by the method or by its rows that have it."""
    plain = [run.before_search for run in runs]
    counted, varied = differing(plain), differences([run.config for run in plain])
    methods = [run.results.method for run in plain]
    rows = grouped(zip(methods, labels, strict=True))
    having = grouped(
        ((method, key, shown(value)), (label, value))
        for run, method, label in zip(plain, methods, labels, strict=True)
        for key, value in sorted(run.in_effect.items())
        if (key in varied and key not in counted) or key in of_some.get(method, ())
    )
    asked: dict[str, dict[str, Any]] = {}
    for (method, key, _), of_rows in having.items():
        names = dict.fromkeys(label for label, _ in of_rows)
        whose = ", ".join(names)
        if names.keys() == {*rows[method]}:
            whose = method
        elif whose == method:  # the name of one of its rows
            whose = f"{method}, {UNNAMED}"
        asked.setdefault(whose, {})[key] = of_rows[0][1]
    return {whose: dict(sorted(values.items())) for whose, values in asked.items()}


def _asked_of_some(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return, by method, the settings of other sections that it sets in some of its runs only."""
    by_method: dict[str, list[str]] = {}
    for method, members in grouped((run.results.method, run.before_search) for run in runs).items():
        for key in sorted({key for run in members for key in run.in_effect}):
            by_plain = grouped((shown(run.plain_settings.get(key)), run.config.get(key)) for run in members)
            if any(map(vary, by_plain.values())):  # of runs whose experiment has it alike
                by_method.setdefault(method, []).append(key)
    return by_method


def _family(run: Run) -> Family:
    return run.results.method, bool(run.tuned)


def _usual(run: Run) -> Mapping[str, Any]:
    return usual_settings(run.config["experiment"], run.config["dataset.name"], run.results.method)


def _varied(settings: Sequence[Mapping[str, Any]], asked: Sequence[str]) -> list[str]:
    """Return the settings in which runs of a method differ, of those that have them; and those in which some lack them.

    Who lacks modules or an adaptation has its method's own.
    """
    keys = dict.fromkeys(key for of_run in settings for key in of_run)
    return [
        key
        for key in keys
        if key in asked
        or vary([of_run[key] for of_run in settings if key in of_run])
        or (key in _OF_METHOD and any(key not in of_run for of_run in settings))
    ]


def _tell_apart(kinds: Mapping[str, Mapping[str, Any]], named: dict[str, list[str]]) -> None:
    """Name further settings of kinds of runs that would have the same name, until each has one of its own.

    They differ in that some lack a setting: another adaptation has other parameters, a recipe's stands for several.
    """
    alike = grouped((assigned({key: kinds[kind][key] for key in keys}), kind) for kind, keys in named.items())
    for same in alike.values():
        added: dict[str, list[str]] = {kind: [] for kind in same}
        for key in sorted(differences([kinds[kind] for kind in same]), key=_first):
            texts = {assigned({each: kinds[kind][each] for each in keys}) for kind, keys in added.items()}
            if len(texts) == len(same) and all(added.values()):
                break
            for kind in same:
                added[kind] += [key] if key in kinds[kind] else []
        for kind in same:
            named[kind] += added[kind] if len(same) > 1 else []


def _first(key: str) -> tuple[bool, bool, str]:
    """Return the order in which settings tell runs apart: whose adaptation or modules, parameters of the method."""
    return key not in _OF_METHOD, not key.startswith("method."), key
