"""The values of a run that differ from those of the printed row it is compared with.

The paper's values are those of its experiment file, resolved for that row without further settings, except for values
that the paper prints otherwise. Where it leaves a value open, the experiment has our reading (``papers.open_values``).
"""

import json
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedshift.lab.tables.papers.printed import ColumnMap, Standing, Table
from fedshift.lab.tables.results.differences import shown
from fedshift.lab.tables.results.settings import (
    ASIDE,
    BN_STATISTICS,
    NODES,
    ROW_SECTIONS,
    folded,
    own_settings,
    paper_settings,
)
from fedshift_app.config.keys import NONE, as_of
from fedshift_core.limits import shortened
from fedshift_core.wire.names import BATCH, OWN, RETAKEN
from fedshift_datasets import catalog

MOST_VALUE = 100  # characters of a value
#: Settings in addition to ``ASIDE`` that do not change the numbers of the last five rounds: further scores of the same
#: weights, threads (which only reorder sums), nodes that a deployment waits for.
IGNORED = (
    *ASIDE,
    "evaluate.every",
    "evaluate.fraction",
    "evaluate.client_models",
    "train.threads",
    "federation.min_nodes",
)
#: Changes numbers only if BatchNorm uses the statistics of test batches, or the method sets such batches.
TEST_BATCH = "images.eval_batch"
#: Change numbers only if BatchNorm statistics are computed from training images, of this number and in this order.
STATISTICS_IMAGES = ("evaluate.bn_images", "evaluate.bn_order")
#: Settings in the order in which they are shown.
ORDER = (*ROW_SECTIONS, "rounds", NODES, "train.", "model.", "allocation.", "dataset.", "images.")
HELD_OUT = "allocation.held_out"
SHIFT, NO_SHIFT, TO_DOMAIN = "shift.name", "none", "domain"
SIZE = "dataset.size"  # null: the data set's own
_NOTHING = object()  # where one side has no such setting


@dataclass(frozen=True)
class Altered:
    """A value that differs from the paper's value, or from our reading of it.

    Attributes:
        key: The setting's dotted key.
        ours: The values of the runs as YAML; several only if seeds differ in it.
        paper: The paper's value as YAML, or our reading if the paper leaves it open.
        why: Reason why it is a reading; empty if the value is the paper's.
    """

    key: str
    ours: tuple[str, ...]
    paper: str
    why: str = ""

    @property
    def text(self) -> str:
        """The value, followed by the paper's value or our reading."""
        return (
            f"{self.key.removeprefix('method.')}={' and '.join(self.ours)} ({'' if self.why else 'paper '}{self.paper})"
        )


def altered(
    configs: Sequence[Mapping[str, Any]], table: Table, column_map: ColumnMap, standing: Standing
) -> tuple[Altered, ...]:
    """Return the values of a row's runs that differ from the paper's, the method's own first.

    They include values that the paper leaves open and that differ from our reading; these have a reason.

    Args:
        configs: The settings of each run by dotted key, with its number of nodes.
        table: The table.
        column_map: Which of its columns are comparable with which of the runs.
        standing: Which of its rows is comparable with the runs.

    Raises:
        ConfigError: If the table belongs to no experiment.
    """
    row_settings = {
        key: value for key, value in (dict(column_map.when) | dict(standing.settings)).items() if key != "experiment"
    }
    given = shlex.join(f"{key}={json.dumps(value)}" for key, value in row_settings.items())
    paper_config = paper_settings(table.experiment(column_map, standing), given)
    method = str(paper_config["method.name"])
    if method not in [config["method.name"] for config in configs]:  # one that the paper lacks
        configs = [as_of(config, method) for config in configs]
    without = set.intersection(*(_ignored(config) for config in (paper_config, *configs)))
    paper = _compared(paper_config, without)
    paper |= {key: value for key, value in table.prints_of(method).items() if key in paper}
    asks = _asks(paper_config)
    ours = [_compared(config, without) for config in configs]
    aside = {NODES} - paper.keys()
    if column_map.unseen and all(len(settings.get(HELD_OUT, ())) == 1 for settings in ours):
        aside.add(HELD_OUT)  # each of the paper's columns is a run of its own
    deviations = []
    for key in dict.fromkeys(key for settings in (paper, *ours) for key in settings if key not in aside):
        theirs, values = paper.get(key, _NOTHING), [settings.get(key, _NOTHING) for settings in ours]
        if any(value != theirs for value in values):
            why = table.why_open(key, method, asks, str(paper_config.get("adapt.name", NONE)))
            deviations.append(Altered(key, tuple(dict.fromkeys(map(_as_text, values))), _as_text(theirs), why))
    return tuple(sorted(deviations, key=lambda deviation: _rank(deviation.key)))


def _compared(settings: Mapping[str, Any], without: Container[str]) -> dict[str, Any]:
    """Return the settings that change numbers, by domain as one value each."""
    compared = {key: value for key, value in folded(settings).items() if key not in without}
    compared[BN_STATISTICS] = _bn_statistics(settings)  # further kinds do not change the numbers of the first
    if compared.get(SHIFT) == NO_SHIFT and settings.get(HELD_OUT):
        compared[SHIFT] = TO_DOMAIN  # it only states that the domains held out are the test
    if compared[SIZE] is None:
        compared[SIZE] = catalog.get(settings["dataset.of"] or settings["dataset.name"]).size
    return compared


def _bn_statistics(settings: Mapping[str, Any]) -> str:
    """Return the kind of BatchNorm statistics behind the numbers of a run or an experiment."""
    statistics = settings[BN_STATISTICS]
    return statistics if isinstance(statistics, str) else str(statistics[0])


def _ignored(settings: Mapping[str, Any]) -> set[str]:
    """Return the keys that do not change numbers with these settings."""
    without = {*IGNORED}
    if _bn_statistics(settings) != BATCH and TEST_BATCH not in _asks(settings):
        without.add(TEST_BATCH)
    if _bn_statistics(settings) not in (RETAKEN, OWN):
        without.update(STATISTICS_IMAGES)
    return without


def _asks(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of other sections that the method sets, by dotted key."""
    return own_settings(str(settings["experiment"]), str(settings["dataset.name"]), str(settings["method.name"]))


def _as_text(value: Any) -> str:
    return "none" if value is _NOTHING else shortened(shown(value), MOST_VALUE)


def _rank(key: str) -> int:
    return next((i for i, first in enumerate(ORDER) if key.startswith(first)), len(ORDER))
