"""The files of a node's training images, as they are before they are decoded (``statistics.share``)."""

from functools import partial
from itertools import chain

from fedshift_app.config.sections import RunConfig
from fedshift_app.node.data import Place, own_images, train_places
from fedshift_clients.calls import Site
from fedshift_datasets import catalog
from fedshift_datasets.base import Split
from fedshift_datasets.io import corrupt_files
from fedshift_datasets.listing import Item, Listing
from fedshift_datasets.quality import checkup


def site_of(config: RunConfig, where: Place) -> Site:
    """Return a node's training images, with width, height and mode of each one's file.

    Raises:
        DataError: If images are missing or broken.
    """
    headers = checkup.headers(_items(config, where))
    return Site(own_images(config, where).train, [(header.size, header.mode) for header in headers])


def _items(config: RunConfig, where: Place) -> list[Item]:
    """Return the files of the images that a node trains on; none where a domain has no image files."""
    of_each = []
    for domain, places in train_places(config, where).items():
        pool = _pool(config, where, domain)
        if pool is None:
            return []
        of_each.append([pool[place] for place in places.tolist()])
    return list(chain.from_iterable(of_each))


def _pool(config: RunConfig, where: Place, domain: str) -> list[Item] | None:
    """Return the files of what the nodes of a domain divide; None where they are no image files."""
    cfg = config.dataset
    splits: tuple[Split, ...] = config.allocation.pool if where.shared else ("train",)
    items: list[Item] = []
    for split in splits:
        find = catalog.get(cfg.kind).find if where.shared else partial(catalog.own_files, cfg.kind)
        files = find(domain, split, where.source)
        listed = files and corrupt_files.usable(files, where.source, cfg.form())
        if not isinstance(listed, Listing):
            return None
        items += listed.items
    return items
