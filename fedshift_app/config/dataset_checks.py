"""Checks the section ``dataset`` against its data set, beyond the type of each key."""

from pathlib import Path

from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_core import same_names
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shortened
from fedshift_core.paths import check_path
from fedshift_core.plural import plural
from fedshift_core.spelling import meant
from fedshift_datasets import catalog
from fedshift_datasets.base import Dataset
from fedshift_datasets.sets import folders


def check_dataset(config: DatasetConfig) -> None:
    """Refuse a relative path, targets that images lack, and domains that are unknown or come twice.

    Raises:
        ConfigError: With the key.
    """
    if config.data_dir and not Path(config.data_dir).is_absolute():
        raise ConfigError(
            f"dataset.data_dir: {as_found(config.data_dir)} is not an absolute path; "
            "the key data-dir= accepts a relative path"
        )
    check_path(config.data_dir, "dataset.data_dir")
    dataset = config.known()
    if dataset.own is not None:
        check_own(config)
    else:
        _check_not_own(config)
    catalog.check_targets(dataset, config.source())
    known = dataset.domains
    for domain in config.domains:
        if domain not in known:
            raise ConfigError(
                f"dataset.domains: {config.name} has no domain {as_found(domain)}; it has {', '.join(known)}"
                f"{meant(domain, known)}",
                keys=(("dataset", "domains", domain),),
            )
    if same_names.twice(config.domains) or not config.domains:
        raise ConfigError(
            f"dataset.domains: expected different domains, found {shortened(', '.join(config.domains)) or 'none'}"
        )
    if config.public is not None:
        _check_public(config, dataset)


def _check_public(config: DatasetConfig, dataset: Dataset) -> None:
    """Refuse a public domain that is unknown, or that nodes hold or are tested on.

    Raises:
        ConfigError: With what is allowed.
    """
    if catalog.PUBLIC in config.domains:
        raise ConfigError(
            f"dataset.public: a domain of the run is called {catalog.PUBLIC!r}, like a node's copy of the public set; "
            "rename the domain"
        )
    domain = config.public_domain
    if not domain:
        return
    if same_names.place(domain, config.domains) is not None:
        raise ConfigError(
            f"dataset.public={shortened(domain)}: nodes hold this domain, or are tested on it; make a share public, "
            "such as dataset.public=0.1, or remove it from dataset.domains"
        )
    if dataset.own is not None:
        try:
            folders.check_domain(domain)
        except ValueError as problem:
            raise ConfigError(f"dataset.public: {problem}") from None
    elif domain not in dataset.domains:
        raise ConfigError(
            f"dataset.public: {config.name} has no domain {as_found(domain)}; it has {', '.join(dataset.domains)}, "
            "and a share is above 0 and below 1"
            f"{meant(domain, dataset.domains)}",
            keys=(("dataset", "public"),),
        )


def check_own(config: DatasetConfig) -> None:
    """Refuse a user's names that cannot be names of domains, classes or a data set.

    Raises:
        ConfigError: With the key.
    """
    if config.of and config.name in catalog.DATASETS:
        raise ConfigError(f"dataset.of: {config.name} is a data set itself; dataset.name must be a new name")
    if len(config.classes) < 2 or same_names.twice(config.classes):
        listed = shortened(", ".join(config.classes)) or "none"
        raise ConfigError(f"dataset.classes: expected at least two different classes, found {listed}")
    if len(config.classes) > folders.MOST_CLASSES or len(config.domains) > folders.MOST_DOMAINS:
        raise ConfigError(
            f"dataset: {plural(len(config.domains), 'domain')} with "
            f"{plural(len(config.classes), 'class', 'classes')}; allowed are "
            f"{folders.MOST_DOMAINS} and {folders.MOST_CLASSES} at most"
        )
    for key, names in (("domains", config.domains), ("classes", config.classes)):
        try:
            same_names.check_numbers(names, f"dataset.{key}:")
        except ValueError as problem:
            raise ConfigError(str(problem)) from None
    for key, names, check in (
        ("name", (config.name,), folders.check_name),
        ("domains", config.domains, folders.check_domain),
        ("classes", config.classes, folders.check_class),
    ):
        for name in names:
            try:
                check(name)
            except ValueError as problem:
                raise ConfigError(f"dataset.{key}: {problem}") from None


def _check_not_own(config: DatasetConfig) -> None:
    """Refuse keys about a user's own images where the data set has its own names and splits."""
    if config.of:
        raise ConfigError(f"dataset.of: {config.of} has its own names; allowed is {', '.join(catalog.of_users())}")
    for key in ("classes", "labels", "test_share", "hub"):
        if getattr(config, key):
            raise ConfigError(
                f"dataset.{key}: {config.name} has its own; the key is for {', '.join(catalog.of_users())}"
            )
