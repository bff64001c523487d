"""What is read before anything starts."""

import numpy as np

from datasets import catalog
from datasets.splits import domain_parts
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import holdings
from fedshift_wire.errors import DataError

UNREADABLE = ": cannot be read ("  # of an image file (``datasets.pictures``)
REMEDY = (
    "to see all such files: fedshift prepare, with the same experiment and data-dir; to go on without them: "
    "dataset.skip_broken=true"
)


def check_data(config: RunConfig, nodes: int) -> float:
    """Read every domain of the run and deal the shares, so that what is wrong is told before anything starts.

    Returns:
        How many images a node trains on, on average.

    Raises:
        DataError: With the file or folder.
    """
    labels = {}
    cfg = config.dataset
    for domain, split in holdings.read_parts(config):
        try:
            labels[domain, split] = catalog.load(cfg.kind, domain, split, cfg.source(), cfg.size, cfg.form()).y
        except DataError as error:
            if UNREADABLE not in str(error) or cfg.skip_broken:
                raise
            raise DataError(str(error), REMEDY) from None
    dealt = config.allocation.deal(cfg.domains, nodes, config.seed)
    classes = len(cfg.known().classes)
    held = 0
    for domain in dict.fromkeys(dealt):
        pool = np.concatenate([labels[domain, split] for split in config.allocation.pool])
        parts = domain_parts(config.allocation, dealt, domain, pool, classes, config.seed, cfg.public_share)
        held += sum(len(part.train) for part in parts.values())
    catalog.load.cache_clear()  # the nodes read for themselves
    return held / len(dealt)


def check_model(config: RunConfig) -> None:
    """Build the networks of a run, so that what does not go together is said before anything starts.

    Raises:
        ConfigError: If the method, the network, the modules and the rest of the configuration do not go together.
    """
    from fedshift_app.node import setup  # torch: only where a run starts
    from fedshift_app.run import starting

    starting.prepare(config, setup.SIMULATION)
    for name in dict.fromkeys(config.model.per_node):
        setup.initial_model(config, config.model.model_copy(update={"name": name}))
