"""``fedshift site report``: a page about a node for its owner, written and kept on the node's machine."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.export import opening, predicting, saved, saving, scorer
from fedshift.export.predicting import Metrics
from fedshift.export.programs import Program
from fedshift.run.texts import render
from fedshift.site import nodes, page
from fedshift.site.nodes import SiteNode
from fedshift.site.page import Images, Kept, Scored
from fedshift_app.config import validating
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import chained_log, one_time_payload, received_model, setup
from fedshift_app.node import data as node_data
from fedshift_app.node.data import Place
from fedshift_app.node.received_model import Received
from fedshift_app.node.state_store import StateStore
from fedshift_clients.training import precision
from fedshift_core import atomic_io
from fedshift_core.arrays import Arrays, digest
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.features import task_of
from fedshift_core.limits import WHOLE_PATH, plain, shown
from fedshift_core.paths import user_path
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet
from fedshift_datasets.io import corrupt_files
from fedshift_datasets.listing import Item, Listing, joined

PAGE_FILE, KEPT_FILE = "report.html", "report.json"


@dataclass(frozen=True)
class Opened:
    """A model that scores images.

    Attributes:
        config: The configuration of its run, with its own network.
        run: Returns the scores (B, C) of images (B, 3, size, size), 0 to 1.
        label: Which model it is, in words.
        sha256: Of its weights.
    """

    config: RunConfig
    run: Program
    label: str
    sha256: str


def write(node: str, *, model: Path | None, data_dir: Path | None, domain: str, output: Path | None) -> str:
    """Write the page, and what the next one compares itself with; return a line that names the page.

    Args:
        node: The name of the node; empty for the only one.
        model: A saved model; None for the last one that the node was sent.
        data_dir: The folder of its images; None for that of its last start.
        domain: Its domain; empty likewise.
        output: The page; None for one in the node's folder.

    Raises:
        FedShiftError: If there is no model, or no images, or one does not fit the other.
    """
    site = nodes.named(node)
    typed = {"domain": domain, "data-dir": data_dir and str(user_path(data_dir, "--data-dir"))}
    given = {**site.config} | {key: value for key, value in typed.items() if value}
    if missing := [key for key in typed if key not in given]:
        raise ConfigError(f"--{missing[0]}: `fedshift supernode` never started {shown(site.name)} here: give it")
    opened = _of_node(site) if model is None else _of_folder(model)
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
        confusion=[] if scored is None else Metrics.of(scored.images.y, scored.chosen, len(classes)).confusion.tolist(),
    )
    since = page.since(now, *_last(site.folder / KEPT_FILE))
    content = page.content(", ".join(where.domains), splits, scored, now, since)
    target = site.folder / PAGE_FILE if output is None else user_path(output, "--output")
    atomic_io.write_durably(target, render("site", content).encode(), private=True)
    atomic_io.write_durably(site.folder / KEPT_FILE, now.model_dump_json().encode(), private=True)
    return f"report: {shown(target, WHOLE_PATH)}"


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


# --- the model ---------------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> Opened:
    """Open a saved model.

    Raises:
        FedShiftError: If it is none, is not complete, or is a program, which does not say how images were divided.
    """
    model, file = saved.read(folder)
    if not model.configuration:
        raise ConfigError(
            f"--model: {shown(folder)} is saved as {model.form}, which lacks the run's configuration; save it as "
            "safetensors"
        )
    origin = model.origin
    label = f"{origin.experiment}, {model.method['name']}, after round {origin.server_round} of {origin.rounds}"
    label += f", before this: {model.before}" if model.before else ""
    config = opening.configuration_of(model, folder)
    return Opened(config, opening.program_of(model, file), f"{label} ({shown(folder)})", model.sha256)


def _of_node(node: SiteNode) -> Opened:
    """Open the last model that a node was sent, with the private parts that it keeps.

    Raises:
        FedShiftError: If none was kept, or it cannot classify without what only a round has.
    """
    kept = received_model.read(node.folder)
    if kept is None:
        raise ConfigError(
            f"{shown(node.name)} keeps no received model: give --model DIR (fedshift save, save-node), or start it by "
            "`fedshift supernode --keep-model`"
        )
    config = validating.from_json(kept.run)
    number = node.config.get("partition-id", -1)
    number = number if isinstance(number, int) else -1
    config = saving.with_network(config, number, str(node.config.get("model", "")))
    arrays = _arrays(node, kept, config)
    built = scorer.rebuilt(config, arrays, f"{shown(node.name)}: the received", kept.node_index)
    run = opening.program_from(built.to(precision.default_device()))
    when = f"before round {kept.server_round}" if kept.trained else f"in round {kept.server_round}"
    when = f"as received {when} of {config.rounds}" if config.rounds else "as received to be scored, without training"
    label = f"{config.experiment}, {config.method['name']}, {when}"
    as_sent = config.declared.client_class().scores_as_sent(config.params())
    if setup.adaptation(config) is not None or not as_sent:
        label += ", before the run adapts it for a score"
    return Opened(config, run, label, digest(arrays))


def _arrays(node: SiteNode, kept: Received, config: RunConfig) -> Arrays:
    """Return the arrays that classify: received, sent once, and the node's own.

    Raises:
        FedShiftError: If some are nowhere.
    """
    needed = scorer.needs_of(config, kept.knowledge, kept.node_index)
    folder = node.folder / f"run-{kept.run_id}"
    weights = (one_time_payload.of_run(folder) if folder.is_dir() else {}) | kept.weights
    arrays = {name: weights[name] for name in needed.weights if name in weights}
    arrays |= {scorer.KNOWLEDGE + name: kept.knowledge[name] for name in needed.knowledge}
    if missing := [name for name in needed.weights if name not in weights]:
        last = kept.server_round - kept.trained
        _, memory = StateStore(folder, (*kept.resumed_after, last)).recall()
        if not memory:
            raise FedShiftError(
                f"{shown(node.name)} has no private parts of run {kept.run_id} after round {last}, and the received "
                "model is not complete without them"
            )
        arrays |= saving.personal_parts(memory, missing, shown(node.name))
    return arrays
