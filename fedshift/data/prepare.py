"""``fedshift prepare`` and ``fedshift preview``: data sets checked, decoded, and looked at."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import typer
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedshift.data import data_check
from fedshift.data.cache_command import size_of
from fedshift.run import checking
from fedshift_app.config import files
from fedshift_app.config import resolving as configuration
from fedshift_app.config.arguments import not_empty, parse_arguments
from fedshift_app.config.cross_checks import check_together
from fedshift_app.config.dataset_checks import check_dataset
from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data as node_data
from fedshift_core import same_names
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.limits import as_found, shown
from fedshift_core.plural import plural
from fedshift_core.spelling import meant
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Split
from fedshift_datasets.corruptions import CORRUPTIONS
from fedshift_datasets.io import feature_store, looks
from fedshift_datasets.io.decode import Progress as Report
from fedshift_datasets.io.decode import no_progress
from fedshift_datasets.partition.allocation import Allocation
from fedshift_datasets.quality import checkup
from fedshift_datasets.quality.corruption_sheet import corruption_sheet
from fedshift_datasets.quality.preview import contact_sheet
from fedshift_datasets.sets import folders


@looks.handed_on()
def prepare(name: str, arguments: list[str], *, as_json: bool) -> int:
    """Decode a data set into the cache, check all its images, and print a report.

    Args:
        name: A data set, or an experiment whose data set it is.
        arguments: ``data-dir=DIR`` and ``dataset.KEY=VALUE``; of an experiment those of ``fedshift run``.
        as_json: Print one JSON object.

    Returns:
        The exit code: 1 if images cannot be read and are not to be skipped.

    Raises:
        ConfigError: If a key is unknown.
        DataError: If a domain is missing, has too few images for a run or none that can be read, or the cache cannot
            be written.
    """
    section, config, nodes = _dataset_config(name, arguments)
    cfg = _with_public(section)
    allocation, held = Allocation() if config is None else config.allocation, _held(section, config, nodes)
    around = data_check.Around()
    if cfg.kind == folders.NAME:
        around = data_check.around(cfg, None if config is None else config.allocation)
    known = cfg.known()
    size = cfg.size or known.size

    def decoded(domain: str, split: Split) -> ImageSet:
        with _bar(f"{domain} {split}") as show:
            return catalog.prepare(cfg.kind, domain, split, cfg.source(), size, show, cfg.form())

    findings = checkup.check(known, cfg.kind, cfg.domains, cfg.source(), cfg.form(), decoded)
    public = data_check.public_set(cfg, findings, allocation, held)
    written = data_check.as_json if as_json else data_check.as_text
    typer.echo(written(cfg, findings, around, public))
    broken = sum(len(part.broken) for part in findings.parts)
    if broken and not cfg.skip_broken:
        typer.echo(
            f"{broken} {'image' if broken == 1 else 'images'} cannot be read: repair or remove them, or continue "
            "without them: dataset.skip_broken=true",
            err=True,
        )
        return 1
    if config is not None:  # what a run of this experiment would refuse
        from fedshift.run.launch import runner  # torch and Flower

        nodes = runner.num_nodes(config, nodes)
        checking.check_data(config, nodes)
        if config.model.precompute:
            _features(config, nodes, err=as_json)
    return 0


def _features(config: RunConfig, nodes: int, *, err: bool) -> None:
    """Compute the features of all images of an experiment, and print a line; interrupted, what is done is kept.

    Args:
        config: The run, with ``model.precompute=on``.
        nodes: How many nodes it has.
        err: Print to standard error.

    Raises:
        ConfigError: If the model's beginning cannot be computed once, or its weights cannot be read.
        DataError: If there is no room.
    """
    if config.model.per_node:
        typer.echo("features: none, as nodes have networks of their own (model.per_node)", err=err)
        return
    from fedshift_app.run import precomputing  # torch: only where there is something to compute

    before = feature_store.bytes_held()
    try:
        with _bar("features") as report:
            depth, number, new = precomputing.for_all_runs(config, nodes, partial(_shown, report))
    except (KeyboardInterrupt, SystemExit):
        new_ones = size_of(feature_store.bytes_held() - before)
        typer.echo(f"features: stopped, {new_ones} of new ones are kept; the same command goes on", err=True)
        raise
    size = feature_store.bytes_held()
    typer.echo(
        f"features: {depth} of {config.model.name}, {plural(number, 'image', form=',')} and views, {new:,} of "
        "them computed now "
        f"({size_of(size - before)}); all features on this machine: {size_of(size)} in {shown(feature_store.root())}",
        err=err,
    )


def _shown(report: Callable[[int], Report], missing: int) -> Callable[[int], None]:
    """Return what moves the progress bar as features are computed."""
    advance, last = report(missing), 0

    def done(number: int) -> None:
        nonlocal last
        advance(number - last)
        last = number

    return done


def _dataset_config(name: str, arguments: list[str]) -> tuple[DatasetConfig, RunConfig | None, int | None]:
    """Return the data set's section and, for an experiment, its configuration and number of nodes, if it is given."""
    if _is_experiment(name, arguments):
        flat, launch = parse_arguments([name, *arguments])
        config = configuration.resolve(flat)
        return config.dataset, config, launch.get("nodes")
    data_dir = ""
    dotted = []
    for argument in arguments:
        key, sep, value = argument.partition("=")
        if key == "data-dir" and sep:
            data_dir = not_empty(key, value)
        elif key.startswith("dataset.") and key != "dataset.name" and sep:
            dotted.append(argument)
        else:
            near = meant(key, ("data-dir", *(f"dataset.{name}" for name in DatasetConfig.model_fields)))
            raise ConfigError(
                f"{as_found(argument)}: of a data set data-dir=DIR and dataset.KEY=VALUE are accepted{near}"
            )
    return configuration.resolve_dataset(name, data_dir, dotted), None, None


def _is_experiment(name: str, arguments: list[str]) -> bool:
    """Return whether an experiment is to be prepared; a data set of the same name goes first, with its own keys."""
    if name.endswith((".yaml", ".yml")):
        return True
    if name not in files.names("experiments"):
        return False
    own = all(argument.startswith(("data-dir=", "dataset.")) for argument in arguments)
    return name not in catalog.DATASETS or not own


def _held(cfg: DatasetConfig, config: RunConfig | None, nodes: int | None) -> tuple[str, ...]:
    """Return the domains that nodes hold; of a data set alone, all of a run.

    Raises:
        ConfigError: If the number of nodes does not fit the allocation.
    """
    if config is None:
        return cfg.domains
    number = nodes or config.allocation.num_nodes()
    if number is None:
        return config.allocation.training_domains(cfg.domains)
    return tuple(dict.fromkeys(config.allocation.deal(cfg.domains, number, config.seed)))


def _with_public(cfg: DatasetConfig) -> DatasetConfig:
    """Return the section with its public domain among the domains."""
    return cfg.model_copy(update={"domains": (*cfg.domains, cfg.public_domain)}) if cfg.public_domain else cfg


@contextmanager
def _bar(text: str) -> Iterator[Callable[[int], Report]]:
    """Show a progress bar on standard error while images are decoded, in a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: no_progress
        return
    columns = TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield partial(_report, progress)


def _report(progress: Progress, total: int) -> Report:
    task = progress.add_task("", total=total or None)
    return lambda finished: progress.advance(task, finished)


def preview(
    name: str, arguments: list[str], domains: str, split: Split, per_class: int, severities: str, public: str = ""
) -> Image.Image:
    """Draw a contact sheet of a data set; images that cannot be read are named and left out.

    Args:
        name: A data set, or an experiment whose data set it is.
        arguments: As of :func:`prepare`.
        domains: Those to draw, with commas; empty for all of a run.
        split: Which split; of a domain that has only another one, that.
        per_class: Samples per class and domain.
        severities: With commas: draw the 15 corruptions instead; empty for none.
        public: As ``dataset.public``: draw that set alone; of a share, the images that a run makes public, with seed 0
            where no experiment has another.

    Raises:
        ConfigError: If a key is unknown, a name or a severity is none.
        DataError: If images are missing, or none of a domain can be read.
    """
    cfg, config, nodes = _dataset_config(name, arguments)
    try:
        return _drawn(name, cfg, config, nodes, domains, split, per_class, severities, public)
    except DataError as error:
        if cfg.skip_broken or checking.UNREADABLE not in str(error):
            raise
    cfg = cfg.model_copy(update={"skip_broken": True})
    config = None if config is None else config.model_copy(update={"dataset": cfg})
    return _drawn(name, cfg, config, nodes, domains, split, per_class, severities, public)


def _drawn(
    name: str, cfg: DatasetConfig, config: RunConfig | None, nodes: int | None,
    domains: str, split: Split, per_class: int, severities: str, public: str,
) -> Image.Image:  # fmt: skip
    """Draw the sheet of :func:`preview`.

    Raises:
        ConfigError: As it does.
        DataError: If images are missing or broken.
    """
    known = cfg.known() if config is None else replace(cfg.known(), domains=cfg.domains)
    chosen = _chosen_domains(name, known.domains, domains) if domains else cfg.domains
    if public:
        return _sheet(known.classes, _public_sets(cfg, config, nodes, chosen, public), per_class, severities)
    size = None if config is None else cfg.size
    sets = {}
    for domain in chosen:
        there = known.splits(domain)
        part = split if split in there else there[0]
        label = domain if part == split else f"{domain}, {part}"
        sets[label] = catalog.load(cfg.kind, domain, part, cfg.source(), size, cfg.form())
    return _sheet(known.classes, sets, per_class, severities)


def _public_sets(
    cfg: DatasetConfig, config: RunConfig | None, nodes: int | None, chosen: tuple[str, ...], public: str
) -> dict[str, ImageSet]:
    """Return the public images that a domain, or a share of the chosen domains, makes.

    Raises:
        ConfigError: If ``public`` is neither, or the run cannot have it.
        DataError: If images are missing or broken.
    """
    share = _share(public)
    others = tuple(domain for domain in chosen if share or not same_names.same(domain, public))
    every = cfg.domains if share and config is not None else others  # the allocation is of all of an experiment's
    cfg = cfg.model_copy(update={"public": share or public, "domains": every})
    check_dataset(cfg)
    allocation, seed = Allocation(), 0
    if config is not None:
        config = config.model_copy(update={"dataset": cfg})
        check_together(config)
        allocation, seed = config.allocation, config.seed
    held = [domain for domain in _held(cfg, config, nodes) if domain in chosen] if share else [public]
    return {
        f"public, {domain}": node_data.public_images(cfg, allocation, cfg.source(), (domain,), seed) for domain in held
    }


def _share(text: str) -> float | None:
    """Return a share above 0 and below 1; None for another text, which is the name of a domain."""
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share < 1 else None


def _chosen_domains(dataset: str, known: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Return the domains named in ``text``, with commas.

    Raises:
        ConfigError: If the data set has no such domain.
    """
    chosen = []
    for name in text.split(","):
        number = same_names.place(name, known)
        if number is None:
            raise ConfigError(f"{dataset} has no domain {as_found(name)}; it has {', '.join(known)}")
        chosen.append(known[number])
    return tuple(chosen)


def _sheet(classes: tuple[str, ...], sets: dict[str, ImageSet], per_class: int, severities: str) -> Image.Image:
    """Draw a contact sheet of classes by domain, or of the 15 corruptions of the first domain's images.

    Raises:
        ConfigError: If a severity is none.
    """
    if not severities:
        return contact_sheet(sets, classes, per_class=per_class)
    if not all(text.strip() in ("1", "2", "3", "4", "5") for text in severities.split(",")):
        raise ConfigError(f"--corruptions is {as_found(severities)}; allowed are severities from 1 to 5, with commas")
    levels = tuple(int(text) for text in severities.split(","))
    return corruption_sheet(next(iter(sets.values())), CORRUPTIONS, levels)
