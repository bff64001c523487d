"""The file of ``dataset.features`` on this machine, and which of its rows are of which image."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_app.config.sections import RunConfig
from fedshift_app.node.place import Place
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_datasets import catalog
from fedshift_datasets.base import OWN_SPLITS, ImageSet, Source, Split
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
    source = where.source if where is not None and own else config.dataset.source()
    if source.data_dir is None:
        raise ConfigError(f"{KEY} needs data-dir, where the file is")
    file = source.data_dir / config.dataset.features
    given = _read(file, _state(file))
    expected = f"features:{given.rows.shape[1]}"
    if config.model.name != expected:
        raise ConfigError(f"{KEY}: {shown(file)} needs model.name={expected}, found {config.model.name}")
    domains = where.domains if where is not None and own else config.dataset.domains
    return given, functools.partial(_by_mark, config.dataset, source, tuple(domains), own, file, _state(file))


def _state(file: Path) -> tuple[int, int]:
    try:
        state = file.stat()
    except OSError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


@functools.lru_cache(maxsize=2)
def _read(file: Path, state: tuple[int, int]) -> Given:
    return given_features.read(file)


@functools.lru_cache(maxsize=2)
def _by_mark(
    dataset: DatasetConfig, source: Source, domains: Sequence[str], own: bool, file: Path, state: tuple[int, int]
) -> Mapping[bytes, int]:
    """Return the row of each image that a node or a simulation may see."""

    def parts() -> Iterator[tuple[list[str], ImageSet]]:
        for domain in (*domains, *([dataset.public_domain] if dataset.public_domain and not own else [])):
            for split in _splits(dataset, domain, source, own):
                yield catalog.named(dataset.kind, domain, split, source, dataset.pixels, dataset.form(), own=own)

    return _read(file, state).by_mark(parts())


def _splits(dataset: DatasetConfig, domain: str, source: Source, own: bool) -> list[Split]:
    """Return the splits that a domain has here."""
    if own:
        return [split for split in OWN_SPLITS if catalog.has_own(dataset.kind, domain, split, source)]
    known = dataset.known()
    splits: list[Split] = [
        split for split in known.splits(domain)
        if known.own is None or catalog.has_own(dataset.kind, domain, split, source)
    ]  # fmt: skip
    more = catalog.gives(dataset.kind, domain, "validation", source, own=False)
    return [*splits, "validation"] if more else splits
