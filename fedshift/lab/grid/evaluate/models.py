"""Reads the models to evaluate: what ``fedshift save`` wrote, or the model of a run folder.

Each becomes the sections of a run without rounds that begins with its weights. A model that all nodes share keeps its
method's own way to classify. A node's own model, and one from before a method's changes at test, is scored as FedAvg's
where that gives the same scores; otherwise it is refused, because other nodes lack what it classifies by.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedshift.export import opening, saved, saving, scorer
from fedshift.export.saved import SavedModel
from fedshift.export.saving import Wanted
from fedshift.run import reading
from fedshift_app.config import registry, validating
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_app.run.files import CONFIG_FILE
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import shown
from fedshift_core.wire.names import AVERAGED

PLAIN = "fedavg"  # scores the weights themselves
TRIED = 8  # random images by which two ways to classify are compared
#: Sections that only training needs.
OF_TRAINING = {"aggregation", "server", "privacy", "tuned"}


@dataclass(frozen=True)
class Model:
    """A model to evaluate.

    Attributes:
        path: What the user named.
        label: Its name in tables and files.
        about: Its description.
        config: The configuration that it was trained with.
        sections: The sections of a run without rounds that begins with it.
    """

    path: Path
    label: str
    about: SavedModel
    config: RunConfig
    sections: dict[str, Any]

    @property
    def trained_on(self) -> tuple[str, ...]:
        """The domains that nodes of its run held."""
        return self.config.allocation.training_domains(self.config.dataset.domains)


def read(path: Path, label: str, store: Path) -> Model:
    """Read a model.

    Args:
        path: A saved model, or a run folder.
        label: Its name.
        store: The folder to make for the model of a run.

    Raises:
        FedShiftError: If it is neither, or a model that other nodes cannot be scored with.
    """
    if (path / saved.MODEL_JSON).is_file():
        return _of_saved(path, path, label)
    if not (path / CONFIG_FILE).is_file():
        raise ConfigError(
            f"evaluate: {shown(path)} is no model: expected a folder that `fedshift save` wrote, or a run folder"
            if path.exists()
            else f"evaluate: there is no folder {shown(path)}"
        )
    record = reading.read(path, "evaluate")
    _check_run(record)
    config = record.config
    adapts = setup.adaptation(config) is not None
    try:
        saving.save(Wanted(path, "safetensors", before=adapts, output=store))
    except FedShiftError as error:
        remedy = f"{error.remedy}; then evaluate the folder that it writes" if error.remedy else ""
        raise type(error)(f"evaluate: {shown(path.name)}: {error.text}", remedy) from None
    model = _of_saved(path, store, label)
    model.sections["adapt"] = config.model_dump(mode="json")["adapt"]
    model.sections["dataset"]["data_dir"] = config.dataset.data_dir
    if config.model.bn_keep == AVERAGED:  # else the file has the statistics that the run keeps
        evaluate = config.evaluate
        given = {"bn": list(evaluate.bn), "bn_images": evaluate.bn_images, "bn_order": evaluate.bn_order}
        model.sections["evaluate"] |= given
    return model


def labels(paths: Sequence[Path]) -> list[str]:
    """Return a name for each path: its last part, or where two are the same what follows their common folder."""
    names = ["/".join(path.parts[-2:]) if _is_saved_in_run(path) else path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath(paths)
    return [str(path.relative_to(common)) for path in paths]


def _is_saved_in_run(path: Path) -> bool:
    return (path / saved.MODEL_JSON).is_file() and (path.parent / CONFIG_FILE).is_file()


def _check_run(record: reading.Record) -> None:
    """Refuse a run without a model that can be scored on other nodes.

    Raises:
        ConfigError: With the reason and what can be done.
    """
    config, where = record.config, f"evaluate: {shown(record.folder.name)}"
    if record.lacking:
        raise ConfigError(f"{where}: {record.lacking}")
    if not config.rounds:
        raise ConfigError(f"{where} has rounds=0: it trained no model; name the model that it scored")
    method = config.method["name"]
    if setup.has_own_parts(config, setup.initial_model(config)):
        one = "save RUN --shared, and fedshift save-node on a node" if record.deployed else "save RUN --node 0"
        raise ConfigError(
            f"{where}: with {method!r} each node keeps parts of the model, so there is none for all nodes",
            remedy=f"one node's complete model can be evaluated on all nodes: fedshift {one}",
        )
    if not registry.get(method).client_class().scores_as_sent(config.params()):
        raise ConfigError(
            f"{where}: {method!r} makes a new model on each node before a score",
            remedy="the model before that can be evaluated: fedshift save RUN --before-adaptation",
        )


def _of_saved(path: Path, folder: Path, label: str) -> Model:
    about, file = saved.read(folder)
    where = f"evaluate: {shown(path.name)}"
    if about.form != "safetensors":
        raise ConfigError(f"{where} is a program ({about.form}); nodes need weights: fedshift save RUN")
    if about.parts == "shared":
        raise ConfigError(f"{where} lacks the nodes' own parts; fedshift save-node adds those of a node")
    config = opening.configuration_of(about, folder)
    scored = _scoring_config(about, file, config, where)
    sections: dict[str, Any] = scored.model_dump(mode="json", exclude=OF_TRAINING)
    sections["model"] |= {"weights": str(file), "weights_sha256": about.sha256, "download": False, "bn_keep": AVERAGED}
    sections["evaluate"] |= {
        "client_models": "off",
        "patience": 0,
        "every": 1,
        "fraction": 1.0,
        "test": True,
        "untrained": "count",
        "bn": [AVERAGED],
    }
    sections |= {"rounds": 0, "keep": "last", "keep_rounds": [], "adapt": {"name": registry.NONE}}
    return Model(path, label, about, config, sections)


def _scoring_config(about: SavedModel, file: Path, config: RunConfig, where: str) -> RunConfig:
    """Return the configuration by whose method a model is scored: its own, or FedAvg where that is the same.

    Raises:
        FedShiftError: If only the node that the model is of can classify so.
    """
    method = str(config.method["name"])
    as_sent = registry.get(method).client_class().scores_as_sent(config.params())
    if about.parts == "global" and as_sent:
        return config
    content = config.model_dump(mode="json", exclude=OF_TRAINING)
    content |= {"method": {"name": PLAIN}, "adapt": {"name": registry.NONE}}
    content["model"] |= {"bn": "average" if config.model.bn == "local" else config.model.bn, "bn_keep": AVERAGED}
    arrays = saved.weights_of(file)
    images = torch.rand(TRIED, 3, about.size, about.size, generator=torch.Generator().manual_seed(0))
    try:
        plain = validating.validate(content)
        with torch.inference_mode():
            own, other = (scorer.rebuilt(each, arrays, "the saved")(images) for each in (config, plain))
    except FedShiftError:
        own, other = torch.full((1,), math.nan), torch.zeros(1)
    if not torch.equal(own, other):
        raise ConfigError(
            f"{where}: {method!r} classifies by more than the weights of a network, which other nodes do not have"
        )
    return plain
