"""The command that makes the runs of a row again, made of their settings and tried before it is shown.

A kept run has no typed command, which may hold local paths. What is written here is what differs from the run's
experiment with its method. It is shown if it resolves to the settings of the run, so that nobody copies a command that
makes another run.
"""

import functools
import itertools
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift.lab.grid.rescore.keys import ADAPT, MAY_DIFFER
from fedshift.lab.grid.sweep import grid
from fedshift.lab.tables.results import setting_cache
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import ASIDE, BN_ORDER, BN_STATISTICS, LAST, NODES, usual_settings
from fedshift_app.config import resolving as configuration
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.keys import NONE, as_requested, flat
from fedshift_app.run.files import CONFIG_FILE
from fedshift_core.errors import ConfigError
from fedshift_core.yaml_files import written

#: What a reader puts in: the folder of the images.
DATA_DIR, HERE = "data-dir", "DIR"
EMBEDDED = "handwritten"  # the data set that needs none
#: Sections that a command sets as a whole, because another form of them has other keys.
_WHOLE = ("allocation.counts", "allocation.share")
_IN_WHOLE = tuple(f"{section}." for section in _WHOLE)
#: Words that YAML takes for something else.
_NO_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
#: Settings of the corruption that ``fedshift rescore`` takes.
_SHIFT = ("shift.name", "shift.corruption", "shift.severity")
#: Dotted keys and the shorter ones that stand for them.
_SHORT = {"evaluate.every": "evaluate-every", "rounds": "rounds", "method.name": "method"}


class Commands:
    """Commands of rows; that of a run is found once for all rows that it is in."""

    def __init__(self) -> None:
        """Know no run."""
        self._known: dict[Path, dict[str, str]] = {}

    def of(self, runs: Sequence[Run]) -> list[str]:
        """Return the commands that make these runs again: one where a grid has exactly them, otherwise several.

        The list is empty where the settings cannot be had from an experiment that is here and no run is on disk. Runs
        that scored the models of others are left out (:func:`scored_again`): training makes other runs.

        Args:
            runs: Runs of one row, which differ in the seed and the held-out domain. Of joined runs their parts.
        """
        runs = [run for run in runs if not run.scored_again]
        words = [self._words(run) for run in runs]
        if not all(words):
            return [_of_folder(run.place) for run in runs if (run.place / CONFIG_FILE).is_file()]
        by_experiment: dict[str, list[dict[str, str]]] = {}
        for run, of_run in zip(runs, words, strict=True):
            by_experiment.setdefault(str(run.config["experiment"]), []).append(of_run)
        return [line for experiment, some in by_experiment.items() for line in lines(experiment, some)]

    def _words(self, run: Run) -> dict[str, str]:
        """Return what differs from the experiment, as a command has it; empty if no command makes the run."""
        if run.place not in self._known:
            self._known[run.place] = _words(run)
        return self._known[run.place]


def lines(experiment: str, runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return one command for a full grid, otherwise one for each set of settings with its seeds.

    Args:
        experiment: Its name.
        runs: The text of each key, for each run.
    """
    if (together := _grid(experiment, runs)) is not None:
        return [together]
    alike: dict[str, list[Mapping[str, str]]] = {}
    for run in runs:
        alike.setdefault(repr(sorted((key, text) for key, text in run.items() if key != "seed")), []).append(run)
    return [line for same in alike.values() if (line := _grid(experiment, same)) is not None]


def scored_again(runs: Sequence[Run]) -> str:
    """Return what stands for the command of runs that scored the models of others; empty if there are none.

    It has the keys of ``fedshift rescore`` that tell how these models were scored.
    """
    again = [run for run in runs if run.scored_again]
    if not again:
        return ""
    kept = "" if all(run.config["keep"] == LAST for run in again) else " after the round that they kept"
    some = "" if len(again) == len(runs) else f"{len(again)} of the runs: "
    keys = " or ".join(dict.fromkeys(map(_rescore_keys, again)))
    return f"{some}models of finished runs{kept}, scored again by fedshift rescore: {keys}"


def _rescore_keys(run: Run) -> str:
    """Return adaptation, corruption, and what else of the keys of ``rescore`` is not as in the run's experiment."""
    settings = flat(run.resolved.model_dump(mode="json"))
    usual = usual_settings(str(run.config["experiment"]), run.config["dataset.name"], run.results.method)
    shift, adapted = settings["shift.name"] != NONE, settings["adapt.name"] != NONE
    shown = {
        key: value for key, value in settings.items()
        if key == "adapt.name" or (adapted and key.startswith(ADAPT)) or (shift and key in _SHIFT)
        or (key in MAY_DIFFER and key not in (*ASIDE, *_SHIFT) and usual and usual.get(key) != value)
    }  # fmt: skip
    return " ".join(f"{key}={_text(value)}" for key, value in shown.items())


def from_here(path: Path) -> str:
    """Return a path as a command in the current folder may name it."""
    here, resolved = Path.cwd(), path.resolve()
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else str(path)


def _grid(experiment: str, runs: Sequence[Mapping[str, str]]) -> str | None:
    """Return the command whose runs are exactly these; None if there is none."""
    if len({tuple(sorted(run)) for run in runs}) > 1:
        return None
    values = {key: list(dict.fromkeys(run[key] for run in runs)) for key in runs[0]}
    if math.prod(map(len, values.values())) != len({tuple(run[key] for key in values) for run in runs}):
        return None
    several = {key: each for key, each in values.items() if len(each) > 1}
    try:
        if any(list(grid.split(key, ",".join(each))) != each for key, each in several.items()):
            return None
    except ConfigError:
        return None
    typed = [f"{key}={','.join(each)}" for key, each in values.items()]
    return shlex.join(["fedshift", "sweep" if several else "run", experiment, *typed])


def _of_folder(place: Path) -> str:
    return shlex.join(["fedshift", "run", from_here(place / CONFIG_FILE)])


def _words(run: Run) -> dict[str, str]:
    experiment, config = str(run.config["experiment"]), _settings(run)
    usual = usual_settings(experiment, run.config["dataset.name"], run.results.method)
    if not usual:
        return {}
    words, known = {"method": run.results.method}, _with_whole(usual)
    for key, value in _with_whole(config).items():
        if key not in known or known[key] != value:
            words[_SHORT.get(key, key)] = _text(value)
    if run.resolved.allocation.num_nodes() is None:
        words[NODES] = str(run.config[NODES])
    if not _makes(experiment, tuple(words.items()), repr(sorted(config.items()))):
        return {}
    images = {} if run.config["dataset.name"] == EMBEDDED else {DATA_DIR: HERE}
    return words | {"seed": str(run.results.seed)} | images


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings that a command must give, with all ways of BatchNorm's statistics that were scored."""
    evaluate = run.resolved.evaluate
    return _deciding(run.config) | {BN_STATISTICS: list(evaluate.bn), BN_ORDER: evaluate.bn_order}


def _deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides a run and the model that it keeps."""
    return {key: value for key, value in config.items() if key not in _ASIDE}


#: A run's place and seed, and what it records; but for the model that it keeps, whose scores may be shown.
_ASIDE = frozenset((*ASIDE, NODES)) - {"keep"}


def _with_whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the sections of ``_WHOLE`` as one value each."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        if key.startswith(_IN_WHOLE):
            whole = next(section for section in _WHOLE if key.startswith(f"{section}."))
            result.setdefault(whole, {})[key.removeprefix(f"{whole}.")] = value
        elif key not in _ASIDE:
            result[key] = value
    return result


def _text(value: Any) -> str:
    """Return a value as a command line has it; a plain word without quotes, which a shell would need twice."""
    plain = isinstance(value, str) and value.replace("-", "_").isidentifier() and value.lower() not in _NO_WORDS
    return str(value) if plain else written(value)


@functools.lru_cache(maxsize=4096)
def _makes(experiment: str, words: tuple[tuple[str, str], ...], wanted: str) -> bool:
    """Return whether a command resolves to these settings."""

    def made() -> bool:
        try:
            given, _ = parse_arguments([experiment, *itertools.starmap("{}={}".format, words)])
            config = as_requested(flat(configuration.resolve(given, finished=True).model_dump(mode="json")))
        except ConfigError:
            return False
        return repr(sorted(_deciding(config).items())) == wanted

    return bool(setting_cache.cached("makes", [experiment, words, wanted], made))
