"""``model.precompute`` before round 1: what the run's nodes need of the frozen beginning is computed and kept."""

import copy
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from clients.models.networks import SplitModel
from clients.models.shortcut import Shortcut, depth_of
from clients.training import precision
from clients.training.precomputed import PLAIN, FrozenFeatures
from datasets.listing import ImageSet
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data as node_data
from fedshift_app.node import setup
from fedshift_app.node.data import Place

log = logging.getLogger("fedshift")


def check(config: RunConfig, model: SplitModel) -> None:
    """Refuse a run whose model's beginning cannot be computed once.

    Raises:
        ConfigError: With the reason.
    """
    if not config.model.precompute:
        return
    Shortcut(model, depth_of(model, config.model.freeze), node_data.image_size(config))


def ahead(config: RunConfig, model: SplitModel, start: Mapping[str, NDArray[Any]], num_nodes: int) -> None:
    """Compute what the nodes of a simulation need and what is not kept yet, so that no node waits for it.

    Args:
        config: The run, with its arithmetic.
        model: The run's model.
        start: What the nodes begin from besides the seed, by state-dict name.
        num_nodes: How many nodes there are.

    Raises:
        DataError: If there is no room, or images are broken.
    """
    if not config.model.precompute or config.model.per_node:  # a network of its own each node computes itself
        return
    features = _features(config, model, start)
    missing = sum(features.missing(images, view) for images, view in _sets(config, num_nodes))
    if not missing:
        return
    features.check_room(missing)
    log.info(
        "model.precompute=on: the %s of %s is computed once for %s images and views",
        features.depth, config.model.name, f"{missing:,}",
    )  # fmt: skip
    done = 0
    for images, view in _sets(config, num_nodes):  # again: all nodes' images together may not fit into memory
        before = features.missing(images, view)
        features.of(images, view, features.said(done, missing))
        done += before


def _features(config: RunConfig, model: SplitModel, start: Mapping[str, NDArray[Any]]) -> FrozenFeatures:
    """Return the features of a copy of the model."""
    device = precision.default_device()
    copied = copy.deepcopy(model)
    copied.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in start.items()}, strict=False)
    return setup.frozen_features(config, config.model, copied, device)


def _sets(config: RunConfig, num_nodes: int) -> Iterator[tuple[ImageSet, int]]:
    """Yield the sets of images that the nodes train on and are scored on, each with the views that they need."""
    views = range(1, config.images.cached_views + 1) if config.images.cached_views > 1 else (PLAIN,)
    for place in range(num_nodes):
        domain = node_data.dealt(config, num_nodes)[place]
        where = Place(domain, place, num_nodes, config.dataset.source(), True, 0)
        own = node_data.own_images(config, where)
        yield from ((own.train, view) for view in views)
        yield from ((images, PLAIN) for images in (own.validation, own.test) if images is not None)
        if place == 0 or config.shift.label_mix == "own":
            for scored in config.dataset.domains:
                yield node_data.test_images(config, where, scored), PLAIN
        if place == 0 and setup.uses_public(config):
            yield node_data.public_set(config, where).images, PLAIN
