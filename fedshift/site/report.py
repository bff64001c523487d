"""``fedshift site report``: a page about a node for its owner, written and kept on the node's machine."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedshift.export import predicting
from fedshift.run.html.rendering import render
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
from fedshift_core.limits import plain, shown
from fedshift_core.paths import user_path
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet
from fedshift_datasets.io import corrupt_files
from fedshift_datasets.listing import Item, Listing, joined

PAGE_FILE, KEPT_FILE = "report.html", "report.json"


@dataclass(frozen=True)
class Wanted:
    """A report.

    Attributes:
        node: Of which node.
        model: A saved model; None for the last one that the node was sent.
        data_dir: The folder of its images; None for that of its last start.
        domain: Its domain; empty likewise.
        output: The page; None for one in the node's folder.
    """

    node: SiteNode
    model: Path | None = None
    data_dir: Path | None = None
    domain: str = ""
    output: Path | None = None


def write(wanted: Wanted) -> Path:
    """Write the page, and what the next one compares itself with; return the page.

    Raises:
        FedShiftError: If there is no model, or no images, or one does not fit the other.
    """
    node_config = _node_config(wanted)
    opened = model.of_node(wanted.node) if wanted.model is None else model.of_folder(wanted.model)
    config = node_data.uncorrupted(opened.config)
    where = setup.place(config, make_context(0, node_config, {}), setup.DEPLOYMENT)
    splits = _splits(config, where)
    classes = config.dataset.known().classes
    scored = _scored(opened, config, where, splits["test"]) if "test" in splits else None
    now = Kept(
        time=chained_log.stamp(time.time()), classes=list(classes), size=config.dataset.pixels,
        splits={name: Images.of(images, len(classes)) for name, images in splits.items()},
        model=opened.label, sha256=opened.sha256,
        confusion=[] if scored is None else scored.metrics.confusion.tolist(),
    )  # fmt: skip
    before, lost = _last(wanted.node.folder / KEPT_FILE)
    content = page.content(", ".join(where.domains), splits, scored, now, before, lost)
    target = wanted.node.folder / PAGE_FILE if wanted.output is None else user_path(wanted.output, "--output")
    atomic_io.write_durably(target, render("site", content).encode(), private=True)
    atomic_io.write_durably(wanted.node.folder / KEPT_FILE, now.model_dump_json().encode(), private=True)
    return target


def _node_config(wanted: Wanted) -> dict[str, Any]:
    """Return what the node was started with, with what is given instead."""
    given: dict[str, Any] = {**wanted.node.config}
    given |= {} if wanted.data_dir is None else {"data-dir": str(user_path(wanted.data_dir, "--data-dir"))}
    given |= {"domain": wanted.domain} if wanted.domain else {}
    for key, option in (("domain", "--domain"), ("data-dir", "--data-dir")):
        if key not in given:
            raise ConfigError(f"{option}: `fedshift supernode` never started {shown(wanted.node.name)} here: give it")
    return given


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
    classes = len(config.dataset.known().classes)
    parts = [
        predicting.probabilities(
            predicting.as_tensor(np.ascontiguousarray(test.x[first : first + predicting.BATCH])), opened.run, classes
        )
        for first in range(0, len(test), predicting.BATCH)
    ]
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
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        return None, plain(f"{shown(path)} cannot be read: {key}: {problem['msg']}")
    except OSError as error:
        return None, plain(f"{shown(path)} cannot be read: {error.strerror}")
