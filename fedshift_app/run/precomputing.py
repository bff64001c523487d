"""``model.precompute`` before round 1: what the run's nodes need of the frozen beginning is computed and kept."""

import copy
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data as node_data
from fedshift_app.node import holdings, setup
from fedshift_app.node import precision as node_precision
from fedshift_app.run import initial_model
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.shortcut import Shortcut, depth_of
from fedshift_clients.training import precision
from fedshift_clients.training.precomputed import PLAIN, FrozenFeatures
from fedshift_datasets import catalog
from fedshift_datasets.listing import ImageSet

#: Given how many images and views are missing, returns what is given how many of them are done.
Show = Callable[[int], Callable[[int], None]]
TELL_SECONDS = 0.5  # shortest interval between two reports of how far the work is
log = logging.getLogger("fedshift")


def check(config: RunConfig, model: SplitModel) -> None:
    """Refuse a run whose model's beginning cannot be computed once.

    Raises:
        ConfigError: With the reason.
    """
    if not config.model.precompute or config.dataset.features:
        return
    Shortcut(model, depth_of(model, config.model.freeze), config.dataset.pixels)


def ahead(
    config: RunConfig,
    model: SplitModel,
    start: Mapping[str, NDArray[Any]],
    num_nodes: int,
    tell: Callable[[dict[str, Any] | None], None],
) -> None:
    """Compute what the nodes of a simulation need and what is not kept yet, so that no node waits for it.

    Args:
        config: The run, with its arithmetic.
        model: The run's model.
        start: What the nodes begin from besides the seed, by state-dict name.
        num_nodes: How many nodes there are.
        tell: Gets how far the work is (``done``, ``of``, ``seconds_left``), and None when it is done.

    Raises:
        DataError: If there is no room, or images are broken.
    """
    if not config.model.precompute or config.model.per_node:  # a network of its own each node computes itself
        return
    features = _features(config, model, start)

    def begin(missing: int) -> Callable[[int], None]:
        log.info(
            "model.precompute=on: the %s of %s is computed once for %s images and views",
            features.depth,
            config.model.name,
            f"{missing:,}",
        )
        logged, began = features.said(missing), time.monotonic()
        last = began
        tell({"done": 0, "of": missing, "seconds_left": None})

        def done(number: int) -> None:  # not more often than a terminal is drawn
            nonlocal last
            logged(number, missing)
            now = time.monotonic()
            if number and now - last >= TELL_SECONDS:
                last, left = now, (now - began) / number * (missing - number)
                tell({"done": number, "of": missing, "seconds_left": round(left, 1)})

        return done

    _compute(features, lambda: _sets(config, num_nodes), begin)
    tell(None)


def for_all_runs(config: RunConfig, num_nodes: int, show: Show) -> tuple[str, int, int]:
    """Compute what any run of an experiment needs: of all images of its data set, whatever its seed and nodes.

    Args:
        config: A run with ``model.precompute=on``; images that it alone has, corrupted ones, are computed, too.
        num_nodes: How many nodes it has.
        show: Shows how far the work is.

    Returns:
        What is computed (``encoder`` or ``stages:N``), of how many images and views, and how many of them were new.

    Raises:
        ConfigError: If the model's beginning cannot be computed once, or its weights cannot be read.
        DataError: If there is no room, or images are broken.
    """
    config, beginning = initial_model.begin(config)
    check(config, beginning.model)
    if arithmetic := node_precision.fastest_here(config, config.model):  # as the run's nodes will say
        config = config.with_values("train", arithmetic=arithmetic)
    features = _features(config, beginning.model, {})
    number, new = _compute(features, lambda: _all_sets(config), show)
    _, more = _compute(features, lambda: _sets(config, num_nodes), show)
    return features.depth, number + more, new + more


def _compute(
    features: FrozenFeatures, sets: Callable[[], Iterable[tuple[ImageSet, int]]], show: Show
) -> tuple[int, int]:
    """Compute what sets of images lack; return how many images and views they have, and how many are new.

    Raises:
        DataError: If there is no room, or images are broken.
    """
    number = missing = 0
    for images, view in sets():
        number += len(images)
        missing += features.missing(images, view)
    if not missing:
        return number, 0
    features.check_room(missing)
    report, done = show(missing), 0
    for images, view in sets():  # again: all nodes' images together may not fit into memory
        new = features.missing(images, view)

        def of_set(number: int, _: int, before: int = done) -> None:
            report(before + number)

        features.of(images, view, of_set)
        done += new
    return number, done


def _features(config: RunConfig, model: SplitModel, start: Mapping[str, NDArray[Any]]) -> FrozenFeatures:
    """Return the features of a copy of the model."""
    device = precision.default_device()
    copied = copy.deepcopy(model)
    copied.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in start.items()}, strict=False)
    return setup.frozen_features(config, config.model, copied, device)


def _sets(config: RunConfig, num_nodes: int) -> Iterator[tuple[ImageSet, int]]:
    """Yield the sets of images that the nodes train on and are scored on, each with the views that they need."""
    views = _views(config) or (PLAIN,)
    for place in range(num_nodes):
        domain = holdings.dealt(config, num_nodes)[place]
        where = node_data.Place(domain, place, num_nodes, config.dataset.source(), True, 0)
        own = node_data.own_images(config, where)
        if config.rounds:
            yield from ((own.train, view) for view in views)
        yield from ((images, PLAIN) for images in (own.validation, own.test) if images is not None)
        if place == 0 or config.shift.label_mix == "own":
            for scored in config.dataset.domains:
                yield node_data.test_images(config, where, scored), PLAIN
        if place == 0 and config.declared.client_class().uses_public:
            yield node_data.public_set(config, where).images, PLAIN


def _all_sets(config: RunConfig) -> Iterator[tuple[ImageSet, int]]:
    """Yield all images of a data set as they are, and what nodes may train on in each augmented view."""
    cfg, known = config.dataset, config.dataset.known()
    for domain in cfg.domains:
        for split in catalog.splits(cfg.kind, known, domain, cfg.source(), own=False):
            images = holdings.read(cfg, domain, split)
            yield images, PLAIN
            if split in config.allocation.pool:
                yield from ((images, view) for view in _views(config))
    if cfg.public_domain:
        split = known.splits(cfg.public_domain)[0]
        yield holdings.read(cfg, cfg.public_domain, split), PLAIN


def _views(config: RunConfig) -> tuple[int, ...]:
    """Return the augmented views that are kept of a training image; none where it is kept as it is."""
    number = config.images.cached_views
    return tuple(range(1, number + 1)) if number > 1 else ()
