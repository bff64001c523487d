"""The command that makes the runs of a row again, made of their settings and tried before it is shown."""

import functools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import ASIDE, BN_STATISTICS, NODES, folded, usual_settings
from fedshift_app.config import resolving
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.keys import as_requested, flat
from fedshift_app.run.files import CONFIG_FILE
from fedshift_core.errors import ConfigError
from fedshift_core.yaml_files import written

EMBEDDED = "handwritten"  # the data set that needs no folder of images
_SHORT = {"evaluate.every": "evaluate-every", "method.name": "method"}
_ASIDE = frozenset((*ASIDE, NODES)) - {"keep"}  # what decides neither a run nor the model that it keeps
_NO_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")  # YAML takes them for something else


def commands(runs: Sequence[Run]) -> list[str]:
    """Return the commands that make these runs again: one for those that differ in their seed alone."""
    seeds: dict[tuple[str, ...], dict[str, None]] = {}
    folders = []
    for run in runs:
        if run.scored_again:
            continue
        if words := _words(run):
            seeds.setdefault(words, {})[str(run.results.seed)] = None
        elif (run.place / CONFIG_FILE).is_file():
            folders.append(shlex.join(["fedshift", "run", from_here(run.place / CONFIG_FILE)]))
    images = [] if runs[0].config["dataset.name"] == EMBEDDED else ["data-dir=DIR"]
    return folders + [
        shlex.join(["fedshift", "sweep" if len(each) > 1 else "run", *words, f"seed={','.join(each)}", *images])
        for words, each in seeds.items()
    ]


def scored_again(runs: Sequence[Run]) -> str:
    """Return what stands for the command of runs that scored the models of others; empty if there are none."""
    again = sum(bool(run.scored_again) for run in runs)
    some = "" if again == len(runs) else f"{again} of the runs: "
    return f"{some}models of finished runs, scored again by fedshift rescore" if again else ""


def from_here(path: Path) -> str:
    """Return a path as a command in the current folder may name it."""
    here, resolved = Path.cwd(), path.resolve()
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else str(path)


def _words(run: Run) -> tuple[str, ...]:
    """Return the words of a command but for the seed; none if no command makes the run."""
    experiment = str(run.config["experiment"])
    changed = _changed(run)
    nodes = [f"{NODES}={run.config[NODES]}"] if run.resolved.allocation.num_nodes() is None else []
    words = (experiment, f"method={run.results.method}", *changed, *nodes)
    if not _usual(run) or not _makes(words, repr(sorted(_settings(run).items()))):
        return ()
    return words


def _changed(run: Run) -> list[str]:
    """Return what a run has otherwise than its method in its experiment, as a command has it."""
    usual = folded(_usual(run))
    changed = {key: value for key, value in folded(_settings(run)).items() if usual.get(key, usual) != value}
    return [f"{_SHORT.get(key, key)}={_text(value)}" for key, value in changed.items() if key != "method.name"]


def _usual(run: Run) -> Mapping[str, Any]:
    return usual_settings(str(run.config["experiment"]), run.config["dataset.name"], run.results.method)


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings that a command must give, with all ways of BatchNorm's statistics that were scored."""
    evaluate = run.resolved.evaluate
    return _deciding(run.config) | {BN_STATISTICS: list(evaluate.bn), "evaluate.bn_order": evaluate.bn_order}


def _deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in _ASIDE}


def _text(value: Any) -> str:
    """Return a value as a command line has it; a plain word without quotes, which a shell would need twice."""
    plain = isinstance(value, str) and value.replace("-", "_").isidentifier() and value.lower() not in _NO_WORDS
    return str(value) if plain else written(value)


@functools.lru_cache(maxsize=4096)
def _makes(words: tuple[str, ...], wanted: str) -> bool:
    """Return whether a command resolves to these settings."""
    try:
        given, _ = parse_arguments(list(words))
        config = as_requested(flat(resolving.settings(given).model_dump(mode="json")))
    except ConfigError:
        return False
    return repr(sorted(_deciding(config).items())) == wanted
