"""What numbers of runs depend on: rounds, epochs, images, network, weights, arithmetic, nodes."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import NODES
from fedshift_clients.models.packages import PREFIX
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, plain, some
from fedshift_core.plural import plural
from fedshift_datasets import catalog

MOST_VALUES = 3  # values shown of a fact in which runs differ
TRAINING = "training"
SCRATCH = "none: from scratch"
UNRECORDED = "not recorded"


def budget(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return what the runs of one table were given: rounds, network, images, first weights, arithmetic, nodes."""
    configs = [run.config for run in runs]
    return [
        (
            TRAINING,
            values(
                f"{plural(config['rounds'], 'round')} x {plural(config['train.epochs'], 'epoch')}" for config in configs
            ),
        ),
        ("network", network(runs)),
        ("image size", values(map(_size, configs))),
        ("pretrained weights", values(map(_weights, configs))),
        ("arithmetic", values(run.surroundings.get("arithmetic", UNRECORDED) for run in runs)),
        ("nodes", values(config[NODES] for config in configs)),
        ("seeds", str(len({run.results.seed for run in runs}))),
    ]


def network(runs: Sequence[Run]) -> str:
    """Return the network of runs, or the networks of their nodes."""
    return values(", ".join(run.config["model.per_node"]) or str(run.config["model.name"]) for run in runs)


def _size(config: Mapping[str, Any]) -> str:
    """Return the size of the images: the one that is set, otherwise that of the data set."""
    size = config["dataset.size"]
    if size is None:
        try:
            size = catalog.get(str(config["dataset.of"] or config["dataset.name"])).size
        except ConfigError:  # of a package that is not here
            return "the data set's own"
    return f"{size} pixels"


def _weights(config: Mapping[str, Any]) -> str:
    """Return the weights that training began with, and what of them it left as they were."""
    if not config["model.weights"] and not config["model.weights_sha256"]:
        return SCRATCH
    given = str(config["model.weights"])
    name = given if given.startswith(PREFIX) else PurePath(given).name or "the library's"  # no folder of anybody's
    kept = "" if config["model.freeze"] == "none" else f", frozen: {config['model.freeze']}"
    return f"{name}{kept}"


def values(each: Iterable[object]) -> str:
    """Return the value of all, or the values in which they differ, in one text."""
    distinct = list(dict.fromkeys(plain(text, MOST_NAME) for text in dict.fromkeys(map(str, each))))
    return some(distinct, MOST_VALUES, " / ")
