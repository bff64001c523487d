"""Our allocation as a ``Partitioner`` of flwr-datasets: nodes with a domain each, drawn as a run draws them.

FederatedDataset(dataset="flwrlabs/pacs", partitioners={"train": DomainPartitioner(counts={"photo": 2, "sketch": 3}, share=0.3)})
"""  # noqa: E501

from typing import Any

import numpy as np
from flwr_datasets.partitioner import Partitioner

from fedshift_core.arguments import as_arguments
from fedshift_core.errors import ConfigError
from fedshift_datasets.partition.allocation import Allocation
from fedshift_datasets.partition.splits import domain_parts


class DomainPartitioner(Partitioner):  # type: ignore[misc]  # it has no types
    """Gives each node images of one domain, by the keys of a run's section ``allocation``."""

    def __init__(
        self,
        *,
        domain_by: str = "domain",
        partition_by: str = "label",
        seed: int = 0,
        nodes: int | None = None,
        **allocation: Any,
    ) -> None:
        """Say which nodes there are.

        Args:
            domain_by: The column of domains.
            partition_by: The column of labels, integers from 0.
            seed: Of what is drawn, as ``seed`` of a run.
            nodes: How many nodes there are, where ``counts`` does not say it.
            allocation: Keys of the section: ``counts``, ``share``, ``rounding``, ``class_coverage`` and others.

        Raises:
            ConfigError: If a key or value is not allowed, or nobody says how many nodes there are.
        """
        super().__init__()
        self._columns, self._seed = (domain_by, partition_by), seed
        self._allocation = as_arguments(Allocation, allocation, "allocation")
        number = self._allocation.num_nodes() or nodes
        if not number:
            raise ConfigError("DomainPartitioner: nodes=N says how many nodes there are, or counts of each domain")
        self._number = number

    @property
    def num_partitions(self) -> int:
        """The number of nodes."""
        return self._number

    def load_partition(self, partition_id: int) -> Any:
        """Return the training images of a node, a ``datasets.Dataset``.

        Raises:
            ConfigError: If the counts name a domain that is not there.
            DataError: If a node would get no image.
        """
        domains, labels = (np.array(self.dataset[column]) for column in self._columns)
        names = self.dataset.features[self._columns[0]]
        known = tuple(dict.fromkeys(domains.tolist()))
        called = tuple(names.int2str(each) if hasattr(names, "int2str") else str(each) for each in known)
        self._allocation.check(called)
        dealt = self._allocation.deal(called, self._number, self._seed)
        domain = dealt[partition_id]
        own = np.flatnonzero(domains == known[called.index(domain)])
        parts = domain_parts(self._allocation, dealt, domain, labels[own], int(labels.max()) + 1, self._seed)
        return self.dataset.select(own[parts[partition_id].train])
