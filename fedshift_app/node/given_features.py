"""The file of ``dataset.features`` on this machine, and which of its rows are of which image."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_app.config.sections import RunConfig
from fedshift_app.node.place import Place
from fedshift_clients.models.catalog import GIVEN
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Source
from fedshift_datasets.io import given_features
from fedshift_datasets.io.given_features import KEY, Given


def of(config: RunConfig, where: Place | None) -> tuple[Given, Callable[[], Mapping[bytes, int]]]:
    """Return the file, and what returns the row of each image by its mark.

    Args:
        config: A run with ``dataset.features``.
        where: The node; None for all nodes of a simulation.

    Raises:
        ConfigError: If there is no data-dir.
        DataError: If the file cannot be used.
    """
    own = where is not None and not where.shared
    if where is None or where.shared:
        source, domains = config.dataset.source(), config.dataset.domains
    else:
        source, domains = where.source, where.domains
    if source.data_dir is None:
        raise ConfigError(f"{KEY} needs data-dir, where the file is")
    file = source.data_dir / config.dataset.features
    given = given_features.read(file)
    if config.model.name != (expected := f"{GIVEN}:{given.width}"):
        raise ConfigError(f"{KEY}: {shown(file)} needs model.name={expected}, found {config.model.name}")
    return given, functools.partial(_by_mark, config.dataset, source, domains, own, file, given.sha256)


@functools.lru_cache(maxsize=2)
def _by_mark(
    dataset: DatasetConfig, source: Source, domains: Sequence[str], own: bool, file: Path, _sha256: str
) -> Mapping[bytes, int]:
    """Return the row of each image that a node or a simulation may see."""

    def parts() -> Iterator[tuple[list[str], ImageSet]]:
        kind, known = dataset.kind, dataset.known()
        for domain in (*domains, *([dataset.public_domain] if dataset.public_domain and not own else [])):
            for split in catalog.splits(kind, known, domain, source, own=own):
                yield catalog.named(kind, domain, split, source, dataset.pixels, dataset.form(), own=own)

    return given_features.read(file).by_mark(parts())
