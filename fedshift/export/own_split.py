"""``fedshift predict --split``: finds the training or the test images of a run's site."""

from collections.abc import Sequence
from pathlib import Path

from fedshift.export import opening
from fedshift.export.images import Picture
from fedshift.export.saved import SavedModel
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shown
from fedshift_datasets import catalog
from fedshift_datasets.base import SPLITS, Split
from fedshift_datasets.io import corrupt_files
from fedshift_datasets.listing import Listing


def pictures(model: SavedModel, folder: Path, given: Sequence[Path], split: str) -> list[Picture]:
    """Return the images of one split as the run had it, with their labels.

    Args:
        model: The model, saved as weights: only these have the run's configuration.
        folder: Its folder.
        given: The folder that was the run's data-dir, or folders of sites in it.
        split: ``train`` or ``test``.

    Raises:
        ConfigError: If the model or the folders do not determine the split.
        DataError: If the images are missing.
    """
    wanted: Split = "train" if split == "train" else "test"
    if split not in SPLITS:
        raise ConfigError(f"--split: {as_found(split)} is unknown; there are {', '.join(SPLITS)}")
    if not model.configuration:
        raise ConfigError(
            f"--split {split}: a model in the format {model.form} lacks the configuration of the run, which states how "
            "images were divided; save it as safetensors"
        )
    config = opening.configuration_of(model, folder)
    cfg = config.dataset
    if len(config.allocation.pool) > 1:
        raise ConfigError(f"--split {split}: the run divided the images of both splits among its nodes, each its own")
    chosen: list[Picture] = []
    for path in given:
        site = path.resolve().name if path.resolve().name in cfg.domains else ""
        source = cfg.source(path.resolve().parent if site else path.resolve())
        for domain in (site,) if site else cfg.domains:
            listed = corrupt_files.usable(catalog.get(cfg.kind).find(domain, wanted, source), source, cfg.form())
            if not isinstance(listed, Listing):
                raise ConfigError(f"--split {split}: the images of {shown(path)} are not image files")
            chosen += [Picture(item.path, int(label)) for item, label in zip(listed.items, listed.labels, strict=True)]
    return chosen
