"""The data set flwr-datasets: a set that FederatedDataset loads becomes sites, one for each partition."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import own_sites
import pytest
import yaml

pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed (pip install flwr-datasets)")

import fedshift as fs
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_datasets import catalog
from fedshift_datasets.io.fetched import HUB_DIR

ROWS = 90
IID = "{name: IidPartitioner, num_partitions: 3}"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a parquet file, as a repository of the hub has it: images, two labels and hospitals."""
    from datasets import ClassLabel, Dataset

    rng = np.random.default_rng(0)
    labels = [k % 3 for k in range(ROWS)]
    table = Dataset.from_dict(
        {
            "scan": [own_sites.picture("west", own_sites.CLASSES[label], rng) for label in labels],
            "label": labels,
            "hospital": [f"h{k % 2}" for k in range(ROWS)],
            "ward": [k % 2 for k in range(ROWS)],
        }
    )
    table = table.cast_column("label", ClassLabel(names=list(own_sites.CLASSES)))
    folder = tmp_path_factory.mktemp("hub") / "scans"
    folder.mkdir()
    table.cast_column("ward", ClassLabel(names=["a/b", "c"])).to_parquet(folder / "train.parquet")
    return folder


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HUB_DIR, str(tmp_path / "kept"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "kept"


def flat(images: Path, dataset: str = "", partitioner: str = IID) -> dict[str, Any]:
    """Return the keys of a command line: `name`, and the others as dotted ones."""
    section = {"name": "scans", "of": "flwr-datasets", "hub": str(images), "size": 32}
    section |= yaml.safe_load(f"{{partitioner: {partitioner}, {dataset}}}")
    return {"dataset": section.pop("name")} | {
        "set": " ".join(shlex.quote(f"dataset.{key}={json.dumps(value)}") for key, value in section.items())
    }


@pytest.mark.parametrize(
    ("partitioner", "sites"),
    [
        (IID, "partition-0 partition-1 partition-2"),
        (
            "{name: DirichletPartitioner, num_partitions: 2, partition_by: label, alpha: 5.0}",
            "partition-0 partition-1",
        ),
        ("{name: SizePartitioner, partition_sizes: [30, 60]}", "partition-0 partition-1"),
        ("{name: NaturalIdPartitioner, partition_by: hospital}", "h0 h1"),
        ("{name: NaturalIdPartitioner, partition_by: ward}", "a_b c"),
        (
            "{name: DomainPartitioner, domain_by: hospital, counts: {h0: 2, h1: 1}}",
            "partition-0 partition-1 partition-2",
        ),
    ],
)
def test_each_partition_is_a_site(images: Path, partitioner: str, sites: str) -> None:
    """All images of all partitions are there, train and test together, with the labels of the set."""
    dataset = resolve(flat(images, partitioner=partitioner)).dataset
    assert (sorted(dataset.domains), dataset.classes) == (sites.split(), tuple(sorted(own_sites.CLASSES)))
    parts = itertools.product(dataset.domains, ("train", "test"))
    y = [catalog.load(dataset.kind, domain, split, dataset.source(), 32).y for domain, split in parts]
    assert np.bincount(np.concatenate(y)).tolist() == [ROWS / 3] * 3


def test_a_run_repeats_from_its_own_configuration(images: Path, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"rounds": 1, "engine": "inline", "progress": False, "output-dir": str(tmp_path)}
    given = {"name": "scans", "of": "flwr-datasets", "hub": str(images), "size": 32, "partitioner": yaml.safe_load(IID)}
    run = fs.run("handwritten", **keys, dataset=given, train={"epochs": 1})
    again = fs.run(str(run.folder / "config.yaml"), **keys)
    assert run.state == "completed" and sorted(run.results.final) == ["partition-0", "partition-1", "partition-2"]
    assert again.results.final == run.results.final


@pytest.mark.parametrize(
    ("error", "change", "named"),
    [
        (ConfigError, "partitioner: {name: IidPartitoner}", "dataset.partitioner.name IidPartitioner"),
        (ConfigError, "partitioner: {name: IidPartitioner}", "dataset.partitioner num_partitions"),
        (ConfigError, "partitioner: 3", "dataset.partitioner 3"),
        (ConfigError, "partitioner: {}", "dataset.partitioner"),
        (ConfigError, "hub: ''", "dataset.hub"),
        (ConfigError, "columns: {label: kind}", "dataset.columns.label kind hospital"),
        (DataError, "partitioner: {name: IidPartitioner, num_partitions: 91}", "dataset.partitioner 91"),
        (DataError, "columns: {image: hospital}", "dataset.hub"),
        (ConfigError, "of: folders, data_dir: /", "dataset.partitioner folders"),
        (ConfigError, "name: pacs, of: '', hub: ''", "dataset.partitioner pacs"),
    ],
)
def test_refused(images: Path, error: type[FedShiftError], change: str, named: str, kept: Path) -> None:
    with pytest.raises(error) as caught:
        resolve(flat(images, change))
    assert [name for name in named.split() if name not in str(caught.value)] == []
    assert not list(kept.glob("*"))  # nothing is half written
