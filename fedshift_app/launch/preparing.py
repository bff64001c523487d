"""``fedshift prepare`` and ``fedshift preview``: data sets checked, decoded, and looked at."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import typer
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from datasets import cache, catalog, trees
from datasets.base import ImageSet, Split
from datasets.corruption_sheet import corruption_sheet
from datasets.corruptions import CORRUPTIONS
from datasets.decode import Progress as Report
from datasets.preview import contact_sheet
from fedshift_app.config import resolving as configuration
from fedshift_app.config.sections import DatasetConfig
from fedshift_wire.bounds import as_found, shown
from fedshift_wire.errors import ConfigError


def prepare(name: str, arguments: list[str]) -> None:
    """Decode a data set into the cache and report what is there, domain by domain.

    Raises:
        ConfigError: If a key is unknown.
        DataError: If a domain is missing or broken, or the cache cannot be written.
    """
    cfg = _dataset_config(name, arguments)
    size = cfg.size or catalog.get(name).size
    for domain in cfg.domains:
        found = {split: _part(cfg, domain, split, size) for split in catalog.get(name).splits(domain)}
        there = sum(len(images) for images in found.values())
        counts = ", ".join(f"{split} {len(images)}" for split, images in found.items())
        published = catalog.get(name).counts
        note = trees.compare_counts({domain: there}, {domain: published[domain]}) if domain in published else None
        typer.echo(f"{domain}: {counts}, {size}x{size}" + (f"; published: {note}" if note else ""))
    typer.echo(f"cache: {shown(cache.cache_dir())}")


def _dataset_config(name: str, arguments: list[str]) -> DatasetConfig:
    flat = {"data-dir": "", "set": ""}
    dotted = []
    for argument in arguments:
        key, sep, value = argument.partition("=")
        if key == "data-dir" and sep:
            flat["data-dir"] = value
        elif key.startswith("dataset.") and key != "dataset.name" and sep:
            dotted.append(argument)
        else:
            raise ConfigError(f"{as_found(argument)}: prepare takes data-dir=DIR and dataset.KEY=VALUE")
    return configuration.resolve_dataset(name, flat["data-dir"], dotted)


def _part(cfg: DatasetConfig, domain: str, split: Split, size: int) -> ImageSet:
    """Prepare one domain and split, with a progress bar."""
    with _bar(f"{domain} {split}") as show:
        return catalog.prepare(cfg.name, domain, split, cfg.source(), size, show, cfg.form())


@contextmanager
def _bar(text: str) -> Iterator[partial[Report]]:
    """Show a progress bar on standard error while images are decoded; nothing where it is no terminal."""
    columns = TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    quiet = not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as progress:
        yield partial(_report, progress)


def _report(progress: Progress, total: int) -> Report:
    task = progress.add_task("", total=total or None)
    return lambda finished: progress.advance(task, finished)


def chosen_domains(dataset: str, text: str) -> tuple[str, ...]:
    """Return the domains named in ``text`` (with commas), or all.

    Raises:
        ConfigError: If the data set has no such domain.
    """
    known = catalog.get(dataset).domains
    wanted = tuple(text.split(",")) if text else known
    for name in wanted:
        if name not in known:
            raise ConfigError(f"{dataset} has no domain {as_found(name)}; it has {', '.join(known)}")
    return wanted


def sheet(dataset: str, sets: dict[str, ImageSet], per_class: int, severities: str) -> Image.Image:
    """Draw a contact sheet of classes by domain, or of the 15 corruptions of the first domain's images.

    Raises:
        ConfigError: If a severity is none.
    """
    if not severities:
        return contact_sheet(sets, catalog.get(dataset).classes, per_class=per_class)
    if not all(text.strip() in ("1", "2", "3", "4", "5") for text in severities.split(",")):
        raise ConfigError(f"--corruptions is {as_found(severities)}; allowed are severities from 1 to 5, with commas")
    levels = tuple(int(text) for text in severities.split(","))
    return corruption_sheet(next(iter(sets.values())), CORRUPTIONS, levels)
