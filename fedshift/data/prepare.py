"""``fedshift prepare`` and ``fedshift preview``: data sets checked, decoded, and looked at."""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import typer
from PIL import Image
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedshift.data import data_check
from fedshift.run import checking
from fedshift_app.config import files, resolving
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
from fedshift_datasets.io import feature_store, looks
from fedshift_datasets.partition.allocation import Allocation
from fedshift_datasets.quality import checkup
from fedshift_datasets.quality.preview import contact_sheet, corruption_sheet

SKIP = "dataset.skip_broken="


@looks.handed_on()
def prepare(dataset: str, arguments: Sequence[str] | None, *, as_json: bool) -> int:
    """Decode a data set into the cache, check all its images, and print a report.

    Args:
        dataset: A data set, or an experiment whose data set it is.
        arguments: ``data-dir=DIR`` and ``dataset.KEY=VALUE``; of an experiment those of ``fedshift run``.
        as_json: Print one JSON object.

    Returns:
        The exit code: 1 if images cannot be read and are not to be skipped.

    Raises:
        ConfigError: If a key is unknown.
        DataError: If a domain is missing, has too few images for a run or none that can be read, or the cache cannot
            be written.
    """
    cfg, config, nodes = _asked(dataset, arguments or ())
    held = _held(cfg, config, nodes)
    if cfg.public_domain:
        cfg = cfg.model_copy(update={"domains": (*cfg.domains, cfg.public_domain)})
    allocation = None if config is None else config.allocation
    survey, known = data_check.survey(cfg, allocation), cfg.known()

    def decoded(domain: str, split: Split) -> ImageSet:
        with _bar(f"{domain} {split}", "advance") as show:
            return catalog.prepare(cfg.kind, domain, split, cfg.source(), cfg.size or known.size, show, cfg.form())

    findings = checkup.check(known, cfg.kind, cfg.domains, cfg.source(), cfg.form(), decoded)
    page = data_check.report(cfg, findings, survey, allocation, held)
    pool = (allocation or Allocation()).pool
    typer.echo(data_check.as_json(page) if as_json else data_check.as_text(cfg, page, pool).rstrip())
    if page["broken"] and not cfg.skip_broken:
        many = plural(len(page["broken"]), "image")
        typer.echo(f"{many} cannot be read: repair or remove them, or continue without them: {SKIP}true", err=True)
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

    Raises:
        ConfigError: If the model's beginning cannot be computed once, or its weights cannot be read.
        DataError: If there is no room.
    """
    if config.model.per_node:
        typer.echo("features: none, as nodes have networks of their own (model.per_node)", err=err)
        return
    from fedshift_app.run import precomputing  # torch: only where there is something to compute

    try:
        with _bar("features", "completed") as show:
            depth, number, new = precomputing.for_all_runs(config, nodes, show)
    except (KeyboardInterrupt, SystemExit):
        typer.echo("features: stopped, what was computed is kept; the same command goes on", err=True)
        raise
    size = decimal(feature_store.bytes_held())
    typer.echo(
        f"features: {depth} of {config.model.name}, {plural(number, 'image', form=',')} and views, {new:,} of them "
        f"computed now; all features on this machine: {size} in {shown(feature_store.root())}",
        err=err,
    )


def of_data_set(arguments: Sequence[str], refusal: str, taken: Collection[str] = ()) -> tuple[str, list[str]]:
    """Return the value of ``data-dir``, empty for none, and ``dataset.KEY=VALUE`` of a command without an experiment.

    Args:
        arguments: As typed.
        refusal: What is allowed, for the message.
        taken: The keys of the section that are; empty for all.

    Raises:
        ConfigError: If a key is another.
    """
    data_dir, dotted = "", []
    every = taken or [f"dataset.{name}" for name in DatasetConfig.model_fields]
    for argument in arguments:
        key, sep, value = argument.partition("=")
        if key == "data-dir" and sep:
            data_dir = not_empty(key, value)
        elif sep and (key in taken or (not taken and key.startswith("dataset.") and key != "dataset.name")):
            dotted.append(argument)
        else:
            raise ConfigError(f"{as_found(argument)}: {refusal}{meant(key, ('data-dir', *every))}")
    return data_dir, dotted


def _asked(name: str, arguments: Sequence[str]) -> tuple[DatasetConfig, RunConfig | None, int | None]:
    """Return the data set's section and, for an experiment, its configuration and number of nodes, if it is given.

    Where a data set has the name of an experiment, it goes first with its own keys.
    """
    own = all(argument.startswith(("data-dir=", "dataset.")) for argument in arguments)
    is_experiment = name in files.names("experiments") and not (own and name in catalog.DATASETS)
    if is_experiment or name.endswith((".yaml", ".yml")):
        flat, launch = parse_arguments([name, *arguments])
        config = resolving.resolve(flat)
        return config.dataset, config, launch.get("nodes")
    data_dir, dotted = of_data_set(arguments, "of a data set data-dir=DIR and dataset.KEY=VALUE are accepted")
    return resolving.resolve_dataset(name, data_dir, dotted), None, None


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


@contextmanager
def _bar(text: str, change: Literal["advance", "completed"]) -> Iterator[Callable[[int], Callable[[int], None]]]:
    """Show a progress bar on standard error, in a terminal only.

    It is begun with how many there are, and then moved by numbers of new ones, or of all that are completed.
    """
    columns = TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:

        def begun(total: int) -> Callable[[int], None]:
            task = progress.add_task("", total=total or None)
            return lambda number: progress.update(task, **{change: number})  # type: ignore[arg-type]

        yield begun


def preview(
    name: str, arguments: Sequence[str], domains: str, split: Split, per_class: int, severities: str, public: str = ""
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
    cfg, config, nodes = _asked(name, arguments)
    known = cfg.known() if config is None else replace(cfg.known(), domains=cfg.domains)
    chosen = tuple(_domain(name, known.domains, each) for each in domains.split(",")) if domains else cfg.domains
    try:
        if public:
            sets = _public_sets(cfg, config, nodes, chosen, public)
        else:
            parts = {domain: split if split in known.splits(domain) else known.splits(domain)[0] for domain in chosen}
            size = None if config is None else cfg.size
            sets = {
                domain if part == split else f"{domain}, {part}": catalog.load(
                    cfg.kind, domain, part, cfg.source(), size, cfg.form()
                )
                for domain, part in parts.items()
            }
    except DataError as error:
        if cfg.skip_broken or checking.UNREADABLE not in str(error):
            raise
        again = [*(argument for argument in arguments if not argument.startswith(SKIP)), f"{SKIP}true"]
        return preview(name, again, domains, split, per_class, severities, public)
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
        return share if 0 < (share := float(text)) < 1 else None
    except ValueError:
        return None


def _domain(dataset: str, known: tuple[str, ...], name: str) -> str:
    number = same_names.place(name, known)
    if number is None:
        raise ConfigError(f"{dataset} has no domain {as_found(name)}; it has {', '.join(known)}")
    return known[number]


def _sheet(classes: tuple[str, ...], sets: dict[str, ImageSet], per_class: int, severities: str) -> Image.Image:
    """Draw a contact sheet of classes by domain, or of the 15 corruptions of the first domain's images.

    Raises:
        ConfigError: If a severity is none.
    """
    if not severities:
        return contact_sheet(sets, classes, per_class=per_class)
    levels = [text.strip() for text in severities.split(",")]
    if not {*levels} <= {*"12345"}:
        raise ConfigError(f"--corruptions is {as_found(severities)}; allowed are severities from 1 to 5, with commas")
    return corruption_sheet(next(iter(sets.values())), tuple(map(int, levels)))
