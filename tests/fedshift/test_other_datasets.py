"""FedShift with Hugging Face's `datasets` and `flwr-datasets` in one process: each is what it is."""

import pytest

from fedshift_app.config.resolving import resolve
from fedshift_app.node.data import train_places
from fedshift_app.node.place import Place
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog

pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed (pip install flwr-datasets)")


@pytest.mark.parametrize("named", [False, True])
def test_our_allocation_is_a_partitioner_of_theirs(named: bool) -> None:
    """It gives each node the images that a run gives it."""
    from datasets import ClassLabel, Dataset, concatenate_datasets
    from fedshift_datasets.partition.flower import DomainPartitioner

    given = "'allocation.counts={scan: 2, sketch: 1}' allocation.share=0.2"
    config = resolve({"experiment": "handwritten", "seed": 3, "set": given})
    tables = []
    for domain in ("scan", "sketch"):
        y = catalog.load("handwritten", domain, "train", config.dataset.source()).y
        tables.append(Dataset.from_dict({"place": [*range(len(y))], "label": y, "domain": [domain] * len(y)}))
    table = concatenate_datasets(tables)
    if named:
        table = table.cast_column("domain", ClassLabel(names=["sketch", "scan"]))
    partitioner = DomainPartitioner(seed=3, counts={"scan": 2, "sketch": 1}, share=0.2)
    partitioner.dataset = table
    assert partitioner.num_partitions == 3
    dealt = config.allocation.deal(("scan", "sketch"), 3, 3)
    for node, domain in enumerate(dealt):
        place = Place(domain, node, 3, config.dataset.source(), shared=True, threads=0)
        (own,) = train_places(config, place).values()
        assert partitioner.load_partition(node)["place"][:] == own.tolist()
    with pytest.raises(ConfigError, match="how many nodes"):
        DomainPartitioner(share=0.2)
