"""Data set `flwr-datasets`: a set of the Hugging Face hub that a partitioner of flwr-datasets divides into sites.

`dataset.hub` is the set, as `FederatedDataset(dataset=...)` takes it, `dataset.partitioner` the partitioner of its
split train with its arguments, `dataset.columns` the columns of images and labels where there are several:

    dataset={name: art, of: flwr-datasets, hub: flwrlabs/pacs,
             partitioner: {name: DirichletPartitioner, num_partitions: 10, partition_by: label, alpha: 0.3}}

Each partition is a site, `partition-0` on, or by its natural id; at the first use its images are written as a site's
folder of images, and read as the data set `folders` reads them: the test part of each class is drawn.
"""

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_core.limits import as_found, plain
from fedshift_core.spelling import meant
from fedshift_datasets.io import fetched
from fedshift_datasets.sets import folders

NAME = "flwr-datasets"
DATASET = replace(
    folders.DATASET,
    name=NAME,
    title="an image set of the Hugging Face hub, divided by a partitioner of flwr-datasets",
    masked=(False,),
)
OURS = "DomainPartitioner"  # the one partitioner that flwr-datasets does not have
SPLIT = "train"
COLUMNS = {"image": "Image", "label": "ClassLabel"}  # and the type that one of them has


def folder(hub: str, partitioner: Mapping[str, Any], columns: Mapping[str, str]) -> Path:
    """Return the folder of all sites, written unless it is there.

    Args:
        hub: The set.
        partitioner: ``name``, and the partitioner's arguments.
        columns: The columns of images and labels that are stated.

    Raises:
        ConfigError: If flwr-datasets is not here, or does not take these arguments.
        DataError: If the set cannot be loaded or divided, or a row holds no image.
    """
    state = [(path.name, path.stat().st_mtime_ns) for path in sorted(Path(hub).glob("**/*"))]  # of a local folder
    stated = json.dumps([hub, state, dict(partitioner), dict(columns)], sort_keys=True, default=str)
    place = fetched.folder(f"{NAME}/{hashlib.sha256(stated.encode()).hexdigest()[:16]}")
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as part:
            _write(hub, partitioner, columns, Path(part) / "sites")
            with contextlib.suppress(FileExistsError):  # another process was first
                shutil.move(Path(part) / "sites", place)
    return place


def _write(hub: str, stated: Mapping[str, Any], columns: Mapping[str, str], to: Path) -> None:
    with _theirs(f"dataset.hub={hub} dataset.partitioner={dict(stated)}"):
        from flwr_datasets import FederatedDataset

        partitioner = _partitioner(stated)
        whole = FederatedDataset(dataset=hub, partitioners={SPLIT: partitioner})
        whole.load_partition(0, SPLIT)  # some partitioners know the number of partitions when they have seen the images
        sites = [whole.load_partition(number, SPLIT) for number in range(int(partitioner.num_partitions))]
        image, label = _columns(sites[0].features, columns)
        natural = getattr(partitioner, "partition_id_to_natural_id", None) or {}
        names = _names(sites[0].features, stated.get("partition_by")) if natural else ()
        classes = _names(sites[0].features, label)
        for number, site in enumerate(sites):
            name = fetched.name_of(natural.get(number, number), names, "partition-", folders.check_domain)
            for row, (picture, kind) in enumerate(_rows(site, image, label)):
                place = to / name / fetched.name_of(kind, classes, label, folders.check_class)
                fetched.write(picture, place, f"{row:06d}", f"{hub}, partition {number}, row {row}")


@contextlib.contextmanager
def _theirs(where: str) -> Iterator[None]:
    """Turn what flwr-datasets raises into one line that names the keys.

    Raises:
        ConfigError: If it is not installed.
        DataError: For all else.
    """
    try:
        import flwr_datasets  # noqa: F401
    except ImportError:
        raise ConfigError(f"dataset.of={NAME} needs it: pip install flwr-datasets") from None
    try:
        yield
    except FedShiftError:
        raise
    except Exception as error:  # of any kind: partitioners are others' code
        why = plain(str(error).partition("\n")[0]) or "no reason given"
        raise DataError(f"{where}: {type(error).__name__}: {why}") from None


def _partitioner(stated: Mapping[str, Any]) -> Any:
    """Return the partitioner.

    Raises:
        ConfigError: If there is none of the name, or it does not take the arguments.
    """
    from flwr_datasets import partitioner as theirs

    from fedshift_datasets.partition.flower import DomainPartitioner

    known = {name: getattr(theirs, name) for name in theirs.__all__ if name != "Partitioner"} | {
        OURS: DomainPartitioner
    }
    name = stated.get("name")
    if name not in known:
        raise ConfigError(
            f"dataset.partitioner.name: {as_found(name)}; allowed are {OURS} and those of flwr_datasets.partitioner"
            f"{meant(str(name), known)}"
        )
    try:
        return known[name](**{key: value for key, value in stated.items() if key != "name"})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"dataset.partitioner: {name}: {plain(str(error))}") from None


def _columns(features: Mapping[str, Any], stated: Mapping[str, str]) -> tuple[str, str]:
    """Return the columns of images and of labels.

    Raises:
        ConfigError: If one is not there, or several may be meant.
    """
    chosen = list[str]()
    for key, kind in COLUMNS.items():
        fitting = [name for name, feature in features.items() if type(feature).__name__ == kind]
        column = stated.get(key) or (key if key in features or len(fitting) != 1 else fitting[0])
        if column not in features:
            raise ConfigError(f"dataset.columns.{key}: {as_found(column)}; the set has {', '.join(features)}")
        chosen.append(column)
    return chosen[0], chosen[1]


def _names(features: Mapping[str, Any], column: Any) -> tuple[str, ...]:
    """Return the names that a column's numbers stand for; empty if it has none."""
    return tuple(getattr(features.get(column), "names", ()))


def _rows(site: Any, image: str, label: str) -> Iterator[tuple[Any, Any]]:
    """Yield the encoded image and the label of each row."""
    encoded = type(site.features[image])(decode=False)
    for row in site.select_columns([image, label]).cast_column(image, encoded):
        picture = row[image]
        if picture.get("bytes") is None and picture.get("path"):
            picture = picture | {"bytes": Path(picture["path"]).read_bytes()}
        yield picture, row[label]
