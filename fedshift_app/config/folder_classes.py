"""Reads domains and classes of a user's own images from data-dir into the configuration, which the nodes receive."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_app.config.error_messages import explaining
from fedshift_core import same_names
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.spelling import meant
from fedshift_datasets import catalog
from fedshift_datasets.base import Dataset
from fedshift_datasets.io import fetched
from fedshift_datasets.sets import folders, partitioned

PAGE = "docs/guide/datasets.md"


def dataset(name: str, of: Any) -> Dataset:
    """Return the data set that reads the images.

    Args:
        name: The key ``dataset.name``.
        of: The key ``dataset.of``; empty if ``name`` is a data set itself.

    Raises:
        ConfigError: If there is no such data set.
    """
    if not isinstance(of, str) or (of and of not in catalog.DATASETS):
        raise ConfigError(f"dataset.of: {as_found(of)}; allowed is {', '.join(catalog.of_users())}")
    if not of and name not in catalog.DATASETS:
        raise ConfigError(
            f"unknown dataset {as_found(name)}; there are {', '.join(catalog.DATASETS)}; for your own images write "
            f"dataset: {{name: {as_found(name)}, of: {folders.NAME}}}{meant(name, catalog.DATASETS)}",
            keys=(("dataset", "name"),),
        )
    return catalog.get(of or name)


def filled(section: Mapping[str, Any], *, typed: bool = False) -> dict[str, Any]:
    """Return the section ``dataset``, with the folder that ``fedshift get`` made where no data-dir is stated.

    Unstated domains and classes are taken from data-dir.

    Args:
        section: The section.
        typed: Its classes come from the command line, not from a file.

    Raises:
        ConfigError: If a key is wrong, or there is no data-dir.
        DataError: If data-dir holds none, or they cannot be names.
    """
    section = dict(section) | ({"classes_stated": True} if typed else {})
    if not section.get("data_dir") and (folder := _kept(section)) is not None:
        section["data_dir"] = str(folder.absolute())
    config = _checked(section)
    known = catalog.get(config.kind)
    if known.own is None or (config.domains and config.classes):
        return section
    if not config.data_dir:
        raise ConfigError(
            f"dataset {config.name} reads its domains and classes from data-dir; without one, as on the server of real "
            "nodes, set dataset.domains=[...] and dataset.classes=[...]"
        )
    names = known.own(config.source(), config.domains)
    domains = tuple(domain for domain in names.domains if not same_names.same(domain, config.public_domain))
    stated = bool(config.classes) and config.classes_stated
    return section | {"domains": domains, "classes": names.classes, "classes_stated": stated}


def _checked(section: Mapping[str, Any]) -> DatasetConfig:
    """Return the section with its keys checked; its domains may be missing."""
    with explaining("dataset"):
        return DatasetConfig.model_validate({"domains": (), **section})


def _kept(section: Mapping[str, Any]) -> Path | None:
    """Return the folder that ``fedshift get`` keeps of a set, or that of the sites into which flwr-datasets divides it.

    None if there is none, or it is not needed.

    Raises:
        ConfigError: If ``dataset.hub`` names a set that is not there, or a key is missing or wrong.
        DataError: If the set cannot be loaded or divided.
    """
    hub, name, stated = section.get("hub"), section.get("name"), section.get("domains") and section.get("classes")
    if partitioned.NAME in (section.get("of"), name):
        if stated and not section.get("partitioner"):
            return None
        config = _checked(section)
        for key in ("hub", "partitioner"):
            if not getattr(config, key):
                raise ConfigError(f"dataset.{key} is missing: dataset.of={partitioned.NAME} reads it, see {PAGE}")
        return partitioned.folder(config.hub, config.partitioner, config.columns)
    if not (hub or (isinstance(name, str) and name in catalog.DATASETS)):
        return None
    folder = fetched.found(fetched.check_repository(hub, "dataset.hub") if hub else str(name))
    if folder is None and hub and not stated:
        raise ConfigError(f"dataset.hub: {hub} is not on this machine; `fedshift get {hub}` fetches it")
    return folder


def spelled(allocation: Mapping[str, Any], domains: Sequence[str]) -> dict[str, Any]:
    """Return the section ``allocation`` with domain names spelled as in the run.

    Args:
        allocation: The section, not yet checked.
        domains: The run's domains.
    """

    def name(given: Any) -> Any:
        number = same_names.place(given, domains) if isinstance(given, str) else None
        return given if number is None else domains[number]

    section = dict(allocation)
    for key in ("counts", "share"):
        by_domain = section.get(key)
        if isinstance(by_domain, Mapping) and len({name(domain) for domain in by_domain}) == len(by_domain):
            section[key] = {name(domain): value for domain, value in by_domain.items()}
    if isinstance(section.get("held_out"), list | tuple):
        section["held_out"] = [name(domain) for domain in section["held_out"]]
    return section
