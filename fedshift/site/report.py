"""``fedshift site report``: a page about a node for its owner, written and kept on the node's machine."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.export import predicting
from fedshift.run.texts import render
from fedshift.site import model, page
from fedshift.site.model import Opened
from fedshift.site.nodes import SiteNode
from fedshift.site.page import Scored
from fedshift.site.statistics import Images, Kept
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import chained_log, setup
from fedshift_app.node import data as node_data
from fedshift_app.node.data import Place
from fedshift_core import atomic_io
from fedshift_core.errors import ConfigError
from fedshift_core.features import task_of
from fedshift_core.limits import plain, shown
from fedshift_core.paths import user_path
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet
from fedshift_datasets.io import corrupt_files
from fedshift_datasets.listing import Item, Listing, joined

PAGE_FILE, KEPT_FILE = "report.html", "report.json"


def write(
    node: SiteNode,
    saved: Path | None = None,
    data_dir: Path | None = None,
    domain: str = "",
    output: Path | None = None,
) -> Path:
    """Write the page, and what the next one compares itself with; return the page.

    Args:
        node: Of which node.
        saved: A saved model; None for the last one that the node was sent.
        data_dir: The folder of its images; None for that of its last start.
        domain: Its domain; empty likewise.
        output: The page; None for one in the node's folder.

    Raises:
        FedShiftError: If there is no model, or no images, or one does not fit the other.
    """
    given: dict[str, Any] = {**node.config}
    given |= {} if data_dir is None else {"data-dir": str(user_path(data_dir, "--data-dir"))}
    given |= {"domain": domain} if domain else {}
    for key in ("domain", "data-dir"):
        if key not in given:
            raise ConfigError(f"--{key}: `fedshift supernode` never started {shown(node.name)} here: give it")
    opened = model.of_node(node) if saved is None else model.of_folder(saved)
    config = node_data.uncorrupted(opened.config)
    where = setup.place(config, make_context(0, given, {}), setup.DEPLOYMENT)
    splits, classes = _splits(config, where), config.dataset.known().classes
    has_matrix = "test" in splits and task_of(config.task).piece == "image"  # else the page shows the images alone
    scored = _scored(opened, config, where, splits["test"]) if has_matrix else None
    now = Kept(
        time=chained_log.stamp(time.time()),
        classes=list(classes),
        size=config.dataset.pixels,
        splits={name: Images.of(images, len(classes)) for name, images in splits.items()},
        model=opened.label,
        sha256=opened.sha256,
        confusion=[] if scored is None else scored.confusion(),
    )
    since = page.since(now, *_last(node.folder / KEPT_FILE))
    content = page.content(", ".join(where.domains), splits, scored, now, since)
    target = node.folder / PAGE_FILE if output is None else user_path(output, "--output")
    atomic_io.write_durably(target, render("site", content).encode(), private=True)
    atomic_io.write_durably(node.folder / KEPT_FILE, now.model_dump_json().encode(), private=True)
    return target


def _splits(config: RunConfig, where: Place) -> dict[str, ImageSet]:
    """Return a node's images by split: those that it trains on, chooses rounds by, is tested on."""
    own = node_data.own_images(config, where)
    splits: dict[str, ImageSet] = {"train": own.train, **own.sets}
    tested = [domain for domain in where.domains if node_data.num_test(config, where, domain)]
    if "test" not in splits and tested:
        splits["test"] = joined([node_data.test_images(config, where, domain) for domain in tested])
    return splits


def _scored(opened: Opened, config: RunConfig, where: Place, test: ImageSet) -> Scored:
    """Return the model's probabilities of the test images."""
    classes, number = len(config.dataset.known().classes), predicting.BATCH
    blocks = (np.ascontiguousarray(test.x[first : first + number]) for first in range(0, len(test), number))
    parts = [predicting.probabilities(opened.run(predicting.as_tensor(block)), len(block), classes) for block in blocks]
    return Scored(test, np.concatenate(parts), _names(config, where, len(test)))


def _names(config: RunConfig, where: Place, number: int) -> Sequence[str] | None:
    """Return the files of the test images, in their order; None where images come in arrays."""
    cfg = config.dataset
    items: list[Item] = []
    for domain in where.domains:
        if not catalog.has_own(cfg.kind, domain, "test", where.source):
            continue
        files = catalog.own_files(cfg.kind, domain, "test", where.source)
        if files is not None:
            files = corrupt_files.usable(files, where.source, cfg.form())
        items += files.items if isinstance(files, Listing) else ()
    if len(items) != number:
        return None
    home = str(where.source.data_dir)
    return [os.path.relpath(item.path, home) if item.length < 0 else item.name for item in items]


def _last(path: Path) -> tuple[Kept | None, str]:
    """Return what the last report kept, and why it cannot be used; empty where it can, or there is none."""
    try:
        return Kept.model_validate_json(path.read_bytes()), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, plain(f"{shown(path)} cannot be read: {error}")
