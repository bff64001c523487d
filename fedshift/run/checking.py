"""Checks images and networks before a run starts."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data as node_data
from fedshift_core.errors import DataError
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Split
from fedshift_datasets.io import looks
from fedshift_datasets.listing import joined
from fedshift_datasets.partition.shares import divide_given
from fedshift_datasets.partition.splits import domain_parts

UNREADABLE = ": cannot be read ("  # of an image file (``fedshift_datasets.io.pictures``)
REMEDY = (
    "to list all such files: fedshift prepare, with the same experiment and data-dir; "
    "to continue without them: dataset.skip_broken=true"
)

#: Labels of images, shape (N,), int64, by domain and split.
Labels = Mapping[tuple[str, Split], NDArray[np.int64]]
#: Groups of the images that the nodes of a domain divide, as ``ImageSet.groups``, by domain.
Groups = Mapping[str, NDArray[np.str_] | None]


@looks.handed_on()
def check_data(config: RunConfig, nodes: int) -> float:
    """Read every domain of the run and deal the shares, so that errors appear before the run starts.

    Returns:
        How many images a node trains on, on average.

    Raises:
        DataError: With the file or folder.
    """
    cfg = config.dataset
    node_data.forget()
    catalog.check_files(cfg.kind, node_data.read_parts(config), cfg.source())
    sets: dict[tuple[str, Split], ImageSet] = {}
    for domain, split in node_data.read_parts(config):
        try:
            sets[domain, split] = catalog.load(cfg.kind, domain, split, cfg.source(), cfg.size, cfg.form())
        except DataError as error:
            if UNREADABLE not in str(error) or cfg.skip_broken:
                raise
            raise DataError(error.text, error.remedy or REMEDY) from None
    groups = {
        domain: joined([sets[domain, part] for part in config.allocation.pool]).groups
        for domain in cfg.domains
        if (domain, "train") in sets
    }
    held = check_shares(config, nodes, {key: images.y for key, images in sets.items()}, groups)
    catalog.forget()  # the nodes read for themselves
    return held


def check_shares(config: RunConfig, nodes: int, labels: Labels, groups: Groups) -> float:
    """Deal images to nodes by their labels, as a run does.

    Args:
        config: The run's configuration.
        nodes: Number of nodes.
        labels: Of every domain and split that the run reads; missing domains are not checked.
        groups: Of domains whose images have some.

    Returns:
        How many images a node trains on, on average.

    Raises:
        DataError: If a domain has too few for its nodes.
        ConfigError: If the number of nodes does not fit.
    """
    cfg, allocation = config.dataset, config.allocation
    dealt = allocation.deal(cfg.domains, nodes, config.seed)
    classes = len(cfg.known().classes)
    held = 0
    for domain in dict.fromkeys(dealt):
        if (domain, "train") not in labels:
            continue
        pool = np.concatenate([labels[domain, split] for split in allocation.pool])
        given = labels.get((domain, "validation"))
        parts = domain_parts(
            allocation.cut(given),
            dealt,
            domain,
            pool,
            classes,
            config.seed,
            cfg.public_share,
            groups.get(domain),
            only_test=cfg.patients == "listed",
        )
        if given is not None:
            divide_given(domain, given, dealt.count(domain), config.seed)
        held += sum(len(part.train) for part in parts.values())
    return held / len(dealt)


def check_model(config: RunConfig) -> None:
    """Build the networks of a run, so that incompatible settings are refused before the run starts.

    Raises:
        ConfigError: If the method, the network, the modules and the rest of the configuration do not go together.
    """
    from fedshift_app.node import setup  # torch: only where a run starts
    from fedshift_app.run import build as run_build

    run_build.prepare(config, setup.SIMULATION)
    for name in dict.fromkeys(config.model.per_node):
        setup.initial_model(config, config.model.model_copy(update={"name": name}))
