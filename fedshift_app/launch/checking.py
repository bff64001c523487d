"""What is read before anything starts."""

import numpy as np

from datasets import catalog
from datasets.splits import domain_parts
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import holdings


def check_data(config: RunConfig, nodes: int) -> float:
    """Read every domain of the run and deal the shares, so that what is wrong is told before anything starts.

    Returns:
        How many images a node trains on, on average.

    Raises:
        DataError: With the file or folder.
    """
    labels = {}
    cfg = config.dataset
    catalog.check_files(cfg.kind, holdings.read_parts(config), cfg.source())
    for domain, split in holdings.read_parts(config):
        labels[domain, split] = catalog.load(cfg.kind, domain, split, cfg.source(), cfg.size, cfg.form()).y
    dealt = config.allocation.deal(cfg.domains, nodes, config.seed)
    classes = len(cfg.known().classes)
    held = 0
    for domain in dict.fromkeys(dealt):
        pool = np.concatenate([labels[domain, split] for split in config.allocation.pool])
        parts = domain_parts(config.allocation, dealt, domain, pool, classes, config.seed, cfg.public_share)
        held += sum(len(part.train) for part in parts.values())
    catalog.load.cache_clear()  # the nodes read for themselves
    return held / len(dealt)
