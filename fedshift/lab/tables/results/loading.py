"""Finished runs as a comparison sees them: their settings by dotted key and what ``results.json`` says."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedshift.lab.tables.results.places import finished, named_by
from fedshift.lab.tables.results.results_file import Results
from fedshift.lab.tables.results.settings import (
    ASIDE,
    BN_ORDER,
    BN_STATISTICS,
    LAST,
    NODES,
    ROUND,
    ROW_SECTIONS,
    TUNED,
    own_settings,
)
from fedshift_app.config import written
from fedshift_app.config.keys import as_requested, flat
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import sections_of_run
from fedshift_app.run import agreement, config_file
from fedshift_app.run.files import (
    CONFIG_FILE,
    METRICS_FILE,
    RESULTS_FILE,
    checked,
    full_lines,
    read_json,
)
from fedshift_app.run.shown import facts
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, plain, shortened, shown
from fedshift_core.paths import user_path
from fedshift_core.shown import History
from fedshift_core.wire.names import BN_SCORE, OWN, RETAKEN
from fedshift_core.yaml_files import read_yaml

#: Scores that are not accuracies, with their names.
FIGURES = {
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro-F1",
    "auc": "AUC",
    "ece": "expected calibration error",
}
CONTRADICTION = "contradiction"  # key of such a file: contradictions between the run's results and rounds
MOST_SAID = 500  # characters of a contradiction

#: Settings of the section ``dataset`` that do not change a domain's images once they are read; runs from before
#: ``patients`` lack it, and the hash of images that have patients is another one.
READ_ALIKE = ("dataset.data_dir", "dataset.download", "dataset.domains", "dataset.patients", "dataset.public")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        place: Its folder, or its results file with the configuration in it.
        results: Its results.
        config: Its settings by dotted key, and its number of nodes.
        resolved: All its settings, as they were requested.
        surroundings: What should not change results: engine, versions, state of the source.
        tuned: The values that a search replaced (``fedshift tune``), by dotted key; empty for all other runs.
        scored_again: The name of the run whose models it scored (``fedshift rescore``); empty for all other runs.
        recorded_method_settings: Its ``method_settings`` as the run recorded them; empty if it did not.
        images: The SHA-256 of its images at its start, by domain and split; empty where unknown.
        contradiction: Contradictions between its ``results.json`` and its rounds; empty if they agree.
        facts: What stands wherever it is shown.
        only: The domains whose scores count, of leave-one-out runs those that it held out; empty for all.
        instead: Settings of a comparison in place of its own: the round that its numbers are of, the BatchNorm
            statistics behind them, of leave-one-out runs what follows from the domain that was held out.
    """

    place: Path
    results: Results
    config: Mapping[str, Any]
    resolved: RunConfig
    surroundings: Mapping[str, str]
    tuned: Mapping[str, Any]
    scored_again: str
    recorded_method_settings: Mapping[str, tuple[Any, Any]]
    images: Mapping[str, Mapping[str, str]]
    contradiction: str
    facts: tuple[str, ...]
    only: tuple[str, ...] = ()
    instead: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def method_settings(self) -> Mapping[str, tuple[Any, Any]]:
        """Return the settings of other sections that its method sets, by dotted key.

        Each value comes with that of the experiment without the method.
        """
        known = own_settings(self.config["experiment"], self.config["dataset.name"], self.results.method)
        return self.recorded_method_settings or known

    @functools.cached_property
    def in_effect(self) -> dict[str, Any]:
        """Return the settings for a comparison whose values come from its method."""
        settings = self.method_settings.items()
        return {
            key: value for key, (value, _) in settings if key in self.group_settings and self.config.get(key) == value
        }

    @functools.cached_property
    def plain_settings(self) -> dict[str, Any]:
        """Return the settings for a comparison with the experiment's values in place of those of its method."""
        return self.group_settings | {key: self.method_settings[key][1] for key in self.in_effect}

    @functools.cached_property
    def name(self) -> str:  # a board asks for it some hundred thousand times, and it looks at the disk
        """Return the name of its folder or file."""
        return self.place.stem if self.place.is_file() else self.place.name

    @functools.cached_property
    def scores(self) -> dict[str, Mapping[str, float | None]]:
        """Return its numbers in percent by score (``results.metrics``) and column, of those that it has."""
        results, figures = self.results, self.results.figures
        scores: dict[str, Mapping[str, float | None]] = {
            "last5": results.domains,
            "final": results.final,
            "best": results.best_test.domains,
        }
        if results.best_validation is not None:
            scores["validation"] = results.best_validation.domains
        domains = self.only or tuple(results.domains)  # of a held-out domain there may be no such statistics
        scores |= {
            name: values
            for name, values in {f"{BN_SCORE}{results.scored_with}": results.domains, **results.others}.items()
            if name.startswith(BN_SCORE) and any(values.get(key) is not None for key in domains)
        }
        if figures is not None:
            of = {domain: figures.domains.get(domain) for domain in results.domains}
            scores |= {
                name: {domain: None if each is None else getattr(each, name) for domain, each in of.items()}
                for name in FIGURES
            }
        if self.only:
            return {name: {key: values.get(key) for key in self.only} for name, values in scores.items()}
        return scores | ({} if results.client_models is None else {"clients": results.client_models.scores()})

    def averaged(self, score: str) -> int:
        """Return the number of rounds over which a score is averaged."""
        clients = self.results.client_models if score == "clients" else None
        return self.results.averaged_rounds if clients is None else clients.averaged_rounds

    @property
    def last_round(self) -> int:
        """The last round that it ran, or of models scored again theirs."""
        return int(self.config["rounds"]) if self.results.rounds is None else self.results.rounds

    def averaged_in(self, score: str) -> tuple[int, ...]:
        """Return the rounds over which a score is averaged, where they are not its last ones; empty otherwise."""
        if self.scored_again or (score == "clients" and self.results.client_models is not None):
            return ()  # one round, or each of the last ones
        return self.results.averaged_over

    @functools.cached_property
    def row_settings(self) -> dict[str, Any]:
        """Return the settings that make a row of its own."""
        return {key: value for key, value in self.config.items() if key.startswith(ROW_SECTIONS) or key in self.tuned}

    @property
    def before_search(self) -> "Run":
        """Return the run with the values that a search replaced; the chosen values make no group."""
        return replace(self, config={**self.config, **self.tuned}, tuned={}) if self.tuned else self

    @functools.cached_property
    def images_read(self) -> str:
        """The settings that determine the images of a domain and split, as text."""
        return repr({k: v for k, v in self.config.items() if k.startswith("dataset.") and k not in READ_ALIKE})

    @functools.cached_property
    def images_divided(self) -> str:
        """The settings that determine, with the seed and the number of nodes, which of them a node holds, as text."""
        return repr({key: value for key, value in self.config.items() if key.startswith(("allocation.", "shift."))})

    @functools.cached_property
    def images_held(self) -> str:
        """The domains and class counts of all nodes in a fixed order, as text."""
        return repr(sorted(repr((node.get("domain"), node.get("class_counts"))) for node in self.results.nodes))

    @functools.cached_property
    def group_settings(self) -> dict[str, Any]:
        """Return the settings that must be equal for a comparison."""
        own = {
            key: value for key, value in self.config.items() if key not in ASIDE and not key.startswith(ROW_SECTIONS)
        }
        return own | {ROUND: LAST} | dict(self.instead)

    @functools.cached_property
    def curve(self) -> dict[int, float]:
        """Return its mean accuracy over the domains by round, of the rounds scored on all test images.

        A round that lacks a domain is left out, because a mean over the rest is another quantity. The result is empty
        for leave-one-out runs, which train apart, and for files that an earlier version kept.
        """
        if self.only:
            return {}
        if self.place.is_file():
            return self.results.curve
        by_round = {}
        for line in full_lines(self.place / METRICS_FILE):
            accuracy = line.get("accuracy")
            values = list(accuracy.values()) if isinstance(accuracy, dict) and "evaluated_share" not in line else []
            if values and all(isinstance(value, int | float) and 0 <= value <= 100 for value in values):
                by_round[line["round"]] = sum(values) / len(values)
        return by_round


class Given(NamedTuple):
    """The runs that paths stand for.

    Attributes:
        runs: The finished runs.
        unfinished: A line with the unfinished runs, if there are any.
        unreadable: A line for each run inside a given folder that cannot be read, with the reason and the remedy.
    """

    runs: Sequence[Run]
    unfinished: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def read(paths: Sequence[Path]) -> Given:
    """Read all finished runs.

    Args:
        paths: Run folders, folders that hold some, and results files: next to a ``config.yaml``, or with its content
            under ``config``.

    Returns:
        The runs, and those left out. A run that is named itself is never left out as unreadable.

    Raises:
        ConfigError: If no run is finished, or a named file, or every file, is not valid.
    """
    places: dict[Path, bool] = {}  # value: whether the place was named itself
    for path in map(user_path, paths):
        for place in named_by(path):
            places[place] = places.get(place, False) or place in (path, path.parent)
    unfinished = [place.name for place in places if not finished(place)]
    if len(unfinished) == len(places):
        raise ConfigError(f"no finished run (with {RESULTS_FILE}) among {', '.join(map(str, paths)) or 'nothing'}")
    runs: list[Run] = []
    errors: dict[str, ConfigError] = {}
    for place, named in places.items():
        if not finished(place):
            continue
        try:
            runs.append(_read(place))
        except ConfigError as error:
            if named:
                raise
            errors[place.name] = error
    if not runs:
        raise next(iter(errors.values()))
    return Given(
        runs,
        (f"left out, not finished: {', '.join(unfinished)}",) if unfinished else (),
        tuple(f"left out, cannot be read: {shown(name)}: {' '.join(str(e).split())}" for name, e in errors.items()),
    )


def _read(place: Path) -> Run:
    recorded: Any
    if place.is_dir():
        file, content = place / RESULTS_FILE, read_json(place / RESULTS_FILE)
        recorded, lines = read_yaml(place / CONFIG_FILE), full_lines(place / METRICS_FILE)
    else:
        file, content, lines = place, read_json(place), []
        recorded = content.get("config") if isinstance(content, dict) else None
    if not isinstance(recorded, dict) or not isinstance(recorded.get("resolved"), dict):
        raise ConfigError(f"{place}: lacks the run's configuration: {CONFIG_FILE} with `resolved`, or the key `config`")
    config_file.check(recorded, str(place), ("resolved",))
    results = checked(Results, content, str(file))
    try:
        resolved = written.read_back(sections_of_run({"resolved": recorded["resolved"]}))
    except ConfigError as error:
        raise error.under(f"{place}: its configuration is not one of this version") from None
    config = as_requested(flat(resolved.model_dump(mode="json"))) | {NODES: len(results.nodes)}
    tuned = {key.removeprefix(TUNED): config.pop(key) for key in list(config) if key.startswith(TUNED)}
    config[BN_STATISTICS] = config[BN_STATISTICS][0]  # further kinds do not change the numbers of the first
    config[BN_ORDER] = order_behind(resolved, config[BN_STATISTICS])
    if (config["method.name"], config["seed"]) != (results.method, results.seed):
        raise ConfigError(
            f"{file}: method {results.method!r}, seed {as_found(results.seed)}; its configuration says "
            f"{config['method.name']!r}, {config['seed']}"
        )
    return Run(
        place,
        results,
        config,
        resolved,
        tuned=tuned,
        contradiction=_contradiction(place, content, lines, recorded),
        facts=tuple(facts(History(resolved, results=content))),
        **_recorded(recorded),
    )


def _recorded(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a :class:`Run` that its ``config.yaml`` has besides the configuration."""
    around = {key: recorded.get(key) for key in ("engine", "arithmetic", "git")} | dict(recorded.get("versions") or {})
    again = recorded.get("scored_again")
    return {
        "surroundings": {key: str(value) for key, value in around.items() if value is not None},
        "scored_again": shortened(str(again.get("run"))) if isinstance(again, dict) else "",
        "recorded_method_settings": {
            key: (value, usual) for key, (value, usual) in (recorded.get("asked") or {}).items()
        },
        "images": recorded.get("images") or {},
    }


def order_behind(config: RunConfig, kind: str) -> str | None:
    """Return the order of images behind one kind of BatchNorm statistics; None for a kind without training images."""
    return config.evaluate.bn_order if kind in (OWN, RETAKEN) else None


def _contradiction(
    place: Path, content: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], recorded: Mapping[str, Any]
) -> str:
    """Return the contradictions between a run's results and rounds in one line.

    A kept file has them under a key of its own.
    """
    if place.is_file():
        return shortened(plain(str(content.get(CONTRADICTION) or " ")).strip(), MOST_SAID)
    lines = "; ".join(filter(None, [agreement.edited(place, recorded), agreement.contradictions(content, rounds)]))
    return f"{place.name}: {lines}" if lines else ""
