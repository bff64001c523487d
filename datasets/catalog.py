"""All data sets by name, and reading them through a cache of this process."""

import functools

from datasets import digits, handwritten
from datasets.base import Dataset, ImageSet, Source, Split
from datasets.errors import ConfigError

DATASETS: dict[str, Dataset] = {d.name: d for d in (handwritten.DATASET, digits.DATASET)}


def get(name: str) -> Dataset:
    """Return a data set by name.

    Raises:
        ConfigError: If there is none of that name.
    """
    if name not in DATASETS:
        raise ConfigError(f"unknown dataset {name!r}; there are {', '.join(DATASETS)}")
    return DATASETS[name]


@functools.cache
def load(name: str, domain: str, split: Split, source: Source) -> ImageSet:
    """Read one domain and split, once per process.

    Raises:
        DataError: If the images are missing or broken.
    """
    return get(name).load(domain, split, source)
