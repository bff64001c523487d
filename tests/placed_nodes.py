"""Simulated and real nodes of a configuration, and the images that they hold."""

from pathlib import Path
from typing import Any

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.node.place import Place
from fedshift_datasets.base import ImageSet


def config(text: str = "", **flat: Any) -> RunConfig:
    """Return the configuration of a run with these settings."""
    return resolve({"set": text} | flat)


def place(cfg: RunConfig, index: int, nodes: int = 8) -> Place:
    """Return where a simulated node stands."""
    dealt = cfg.allocation.deal(cfg.dataset.domains, nodes, cfg.seed)
    return Place(dealt[index], index, nodes, cfg.dataset.source(), shared=True, threads=1)


def real(cfg: RunConfig, domain: str, folder: Path, index: int = 0) -> Place:
    """Return where a real node stands that has a folder."""
    return Place(domain, index, -1, cfg.dataset.source(folder), shared=False, threads=1)


def names(images: ImageSet | None) -> list[bytes]:
    """Return the pixels of each image, which tell images apart."""
    return [] if images is None else [x.tobytes() for x in images.x]
