"""``fedshift methods``, ``datasets``, ``models`` and other lists, ``papers`` and ``cite``."""

import html
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fedshift.run.catalog import completion
from fedshift.run.options import Bounds, command
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError

if TYPE_CHECKING:
    from fedshift_core.extensions import Named, Registry

T = TypeVar("T", bound="Named")

app = typer.Typer()


@command(app)
def methods(
    name: Annotated[str | None, completion.methods] = None, *, markdown: bool = False, privacy: bool = False
) -> str:
    """List the methods in groups, one line each, with their package, or show all of one.

    Args:
        name ([NAME]): One method: its parameters, page, what travels.
        markdown: Print the tables in Markdown.
        privacy: Print what each sends, and what it fits.

    Examples:
        fedshift methods
        fedshift methods i2pfl
    """
    if name is not None and (markdown or privacy):
        raise ConfigError(f"methods: {name!r} is one method, but --markdown and --privacy print tables of all")
    from fedshift_app.config import registry

    if markdown or privacy:
        from fedshift_app.config.fits import privacy as privacy_table

        return registry.markdown() if markdown else privacy_table()
    from fedshift.run.catalog import methods as about

    if name is not None:
        return about.described(name)
    print_problems(registry.METHODS)
    return "\n".join(about.listed())


@command(app)
def keys(key: str = "", *, markdown: bool = False) -> None:
    """List the keys of the configuration, each with its type, default, range and description.

    Args:
        key ([KEY]): A section or the beginning of a key: train, train.lr.
        markdown: Print a page of all, in Markdown.

    Examples:
        fedshift keys
        fedshift keys train.lr
    """
    from fedshift.run.catalog import keys as reference

    if key and markdown:
        raise ConfigError(f"keys: {key!r} is a part of the keys, but --markdown prints the page of all")
    typer.echo(reference.markdown() if markdown else reference.text(key), nl=not markdown)


@command(app)
def commands(name: str = "") -> None:
    """Print all commands with their arguments and options, in Markdown.

    Args:
        name ([NAME]): The beginning of a command's name.

    Examples:
        fedshift commands
        fedshift commands site
    """
    from fedshift.cli import commands_page

    typer.echo(html.unescape(commands_page.markdown(name)), nl=False)


@command(app, "datasets")
def data_sets(name: Annotated[str | None, completion.data_sets] = None) -> str:
    """List the data sets, one line each, with the package that they come from; or show all of one.

    Args:
        name ([NAME]): One data set: domains, classes, sizes.

    Examples:
        fedshift datasets
        fedshift datasets pacs
    """
    from fedshift.run.catalog import things
    from fedshift_datasets import catalog

    return things.dataset(name) if name is not None else listed(catalog.DATASETS, things.dataset_line)


@command(app)
def models(
    names: Annotated[list[str] | None, completion.networks] = None,
    *,
    size: Annotated[int, Bounds(16, 512)] = 64,
    markdown: bool = False,
    pretrained: bool = False,
) -> str:
    """List the networks, one line each; or show features, parameters and stages of those that are named.

    Args:
        names ([NAME ...]): Only these, with their content.
        size: Height and width of the images in pixels.
        markdown: Print Markdown.
        pretrained: Pretrained weights on this machine, and how to get others.

    Examples:
        fedshift models
        fedshift models resnet10 cnn --markdown
    """
    if pretrained and (names or markdown):
        raise ConfigError("models: --pretrained goes with no NAME and without --markdown")
    if pretrained or names:
        from fedshift.run.catalog import networks

        return networks.pretrained() if pretrained else networks.table(names or [], size, markdown=markdown)
    from fedshift_clients.models.catalog import FAMILIES, NETWORKS

    lines = listed(NETWORKS, lambda n: n.title + (f"; images of {n.size}x{n.size} only" if n.size else ""))
    return "\n".join([lines, *(family.title for family in FAMILIES.values())])


@command(app)
def adaptations() -> str:
    """List what a node can do between the weights and the score, one line each (section adapt).

    Examples:
        fedshift adaptations
        fedshift run handwritten method=fedprox adapt.name=finetune
    """
    from fedshift_app.config import registry

    return listed(registry.ADAPTATIONS)


@command(app)
def modules() -> str:
    """List the modules that any method's model can carry, one line each (section modules).

    Examples:
        fedshift modules
        fedshift run handwritten method=fedavg modules=f2dc
    """
    from fedshift_app.config import registry

    return listed(registry.MODULES)


@command(app)
def experiments(name: Annotated[str | None, completion.experiments] = None) -> str:
    """List the experiments: the nodes they need, and the table of a paper that they stand for; or show all of one.

    Args:
        name ([NAME]): One experiment, or a .yaml file.

    Examples:
        fedshift experiments
        fedshift experiments handwritten
    """
    from fedshift.run.catalog import things

    return things.experiment(name) if name is not None else "\n".join(things.experiments())


@command(app)
def papers() -> str:
    """List the papers' printed tables, one line each, by the id that `fedshift compare --paper` takes.

    Examples:
        fedshift papers
        fedshift compare runs --paper f2dc.table1b
    """
    from fedshift.lab.tables.papers import printed as tables

    return "\n".join(tables.lines())


@command(app)
def cite(runs: list[Path] | None = None, *, method: str = "", dataset: str = "", network: str = "") -> None:
    """Print BibTeX of the methods, data sets and networks that runs use, and of Flower and FedShift.

    Args:
        runs ([RUN...]): Run folders, or folders that hold some.
        method: Methods, with commas: fpl,f2dc.
        dataset: Data sets, with commas.
        network: Networks, with commas.

    Examples:
        fedshift cite runs
        fedshift cite --method fpl,f2dc --dataset pacs
    """
    from fedshift.cli import citations

    if not (runs or method or dataset or network):
        raise ConfigError("cite: name runs, or --method, --dataset or --network")
    cited, unreadable = citations.of_runs(runs) if runs else (citations.Citations(), [])
    citations.add_named(cited, method, dataset, network)
    typer.echo(cited.bibtex())
    for line in unreadable:
        typer.echo(f"warning: {line}", err=True)
    if unreadable:
        raise SystemExit(exit_codes.FAILED)


def listed(kind: "Registry[T]", line_of: Callable[[T], str] = attrgetter("title")) -> str:
    """Return a line for each entry of a registry, with its package if it is not ours. Unusable ones go to stderr."""
    from fedshift_core.extensions import OURS

    print_problems(kind)
    rows = [(name, line_of(thing), kind.origin(name)) for name, thing in kind.items()]
    width = max(map(len, kind))
    return "\n".join(f"{name:<{width}}  {line}{'' if of == OURS else f' [{of}]'}" for name, line, of in rows)


def print_problems(kind: "Registry[T]") -> None:
    """Print to stderr the entries of packages that cannot be used."""
    for problem in kind.problems():
        typer.echo(f"left out: {problem}", err=True)
