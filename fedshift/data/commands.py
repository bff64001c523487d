"""``fedshift init``, ``prepare``, ``preview`` and ``cache``."""

from pathlib import Path
from typing import Annotated

import typer

from fedshift.run.catalog import completion
from fedshift.run.options import Bounds, command
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, as_found, shown
from fedshift_core.spelling import begun_with

app = typer.Typer()
cache_app = typer.Typer(
    help="List, verify and delete decoded images and computed features; without an action, list them."
)
app.add_typer(cache_app, name="cache")


def _cached(incomplete: str) -> list[str]:
    """Complete the name of images or features that are kept."""
    from fedshift.data import cache_command

    return begun_with(cache_command.names(), incomplete)


def _fetchable(incomplete: str) -> list[str]:
    """Complete the name of a set that the hub has."""
    from fedshift.data import hub

    return begun_with(hub.KNOWN, incomplete)


@command(app, to="fedshift.data.init:init")
def init(folder: str, arguments: list[str] | None = None) -> None:
    """Write an experiment file for images of your own: what was found, and a network, batch and rounds to begin with.

    data-dir: <site>/<class>/*, <site>/{train,test}/<class>/* or labels.csv, see docs/guide/own-data.md. Further keys:
    dataset.domains, classes, labels, seed, test_share.

    Args:
        folder (DIR): A new folder; its name becomes the experiment's.
        arguments (data-dir=DIR [KEY=VALUE ...]): Keys, see above.

    Examples:
        fedshift init mine data-dir=MY_IMAGES
        fedshift init mine data-dir=MY_IMAGES dataset.test_share=0.3
    """


@command(app, to="fedshift.data.prepare:prepare")
def prepare(
    dataset: Annotated[str, completion.prepared], arguments: list[str] | None = None, *, as_json: bool = False
) -> None:
    """Check a data set, decode it once with all cores, and keep it in the cache of images.

    Prints the images of each class by site and split, sizes, files that cannot be read or were not taken, and images
    that are nearly the same. Keys: data-dir, dataset.domains=[...], dataset.size=N, dataset.resize=crop,
    dataset.download=true, and the others of the section dataset. Of an experiment all keys of `fedshift run`; with
    model.precompute=on features of all images are computed, too, and kept. Interrupted, the same command goes on.

    Args:
        dataset: See `fedshift datasets`; or an experiment: its name or .yaml file.
        arguments ([data-dir=DIR] [KEY=VALUE ...]): Keys, see above.
        as_json: One JSON object.

    Examples:
        fedshift prepare mine/mine.yaml
        fedshift prepare pacs data-dir=PACS --json
    """


@command(app, to="fedshift.data.hub:get")
def get(
    name: Annotated[str, _fetchable],
    *,
    to: Path | None = None,
    accept: bool = False,
    revision: str = "",
    files: str = "",
    image: str = "",
    label: str = "",
    domain: str = "",
) -> None:
    """Fetch an image set of the Hugging Face hub: pacs, office-home, domainnet, fed-isic2019, camelyon17, OWNER/NAME.

    Shows size and licence, asks whether you accept it, fetches the parquet or zip files, compares their SHA-256 and
    writes the images as <domain>/[<split>/]<class>/. Interrupted, the same command goes on. `fedshift run` finds one of
    ours without data-dir, any other by dataset.hub=OWNER/NAME.

    Args:
        name (NAME): One of the above, or a repository of the hub: columns image, label and domain, or zip files.
        to (--to DIR): Where to; without it below $FEDSHIFT_HUB, or ~/.cache/fedshift/hub.
        accept: Accept the licence without a question.
        revision: A branch, tag or commit; without it the newest.
        files: Only the files whose paths begin so: one configuration of several.
        image: The column of the images, unless it is image.
        label: The column of the classes, unless it is label.
        domain: The column of the domains, unless it is domain.

    Examples:
        fedshift get pacs
        fedshift get flwrlabs/office-home --accept
    """


@command(app)
def preview(
    dataset: Annotated[str, completion.prepared],
    arguments: list[str] | None = None,
    *,
    output: Path = Path("sheet.png"),
    data_dir: Path | None = None,
    domains: str = "",
    split: str = "train",
    per_class: Annotated[int, Bounds(1, 20)] = 2,
    corruptions: str = "",
    public: str = "",
) -> None:
    """Draw samples of every domain of a data set, or of its corruptions, on one contact sheet.

    Keys: those of `fedshift prepare`. Images that cannot be read are named and left out.

    Args:
        dataset: See `fedshift datasets`; or an experiment: its name or .yaml file.
        arguments ([data-dir=DIR] [KEY=VALUE ...]): Keys, see above.
        output (-o, --output): The PNG to write.
        data_dir: Folder of the images, as the key data-dir.
        domains: Domains to draw, with commas; default: those of a run.
        split: train or test.
        per_class: Samples per class and domain.
        corruptions: Severities, with commas: draw the 15 corruptions instead.
        public: A domain or a share: draw the public set that it makes.

    Examples:
        fedshift preview handwritten -o sheet.png
        fedshift preview pacs data-dir=PACS -o sheet.png --per-class 4
    """
    from fedshift.data import prepare as prepare_module
    from fedshift_datasets.base import SPLITS, Split

    if split not in SPLITS:
        raise ConfigError(f"--split is {as_found(split)}; allowed are {' and '.join(SPLITS)}")
    part: Split = "train" if split == "train" else "test"
    keys = [*([f"data-dir={data_dir}"] if data_dir else []), *(arguments or [])]
    sheet = prepare_module.preview(dataset, keys, domains, part, per_class, corruptions, public)
    try:
        sheet.save(output)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {shown(output)}: {shown(error)}") from None
    typer.echo(f"wrote {shown(output.resolve(), WHOLE_PATH)}")


@cache_app.callback(invoke_without_command=True)
def cache(
    ctx: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False
) -> None:
    """List, verify and delete decoded images and computed features; without an action, list them."""
    if ctx.invoked_subcommand is None:
        from fedshift.data import cache_command

        typer.echo(cache_command.listed(as_json=as_json))
    elif as_json:
        raise ConfigError("cache: --json comes after list; verify and delete have none")


@command(cache_app, "list", to="fedshift.data.cache_command:listed")
def cache_list(*, as_json: bool = False) -> None:
    """List images and features that are kept: sizes, ages, what uses them.

    Args:
        as_json: One JSON object.

    Examples:
        fedshift cache list
        fedshift cache list --json
    """


@command(cache_app, "verify", to="fedshift.data.cache_command:verify")
def cache_verify(names: Annotated[list[str] | None, _cached] = None) -> None:
    """Compare all checksums and list what is damaged, which makes the exit code 1. Nothing is changed.

    Args:
        names ([NAME ...]): As `fedshift cache` lists them; * stands for any letters.

    Examples:
        fedshift cache verify
        fedshift cache verify 'pacs*'
    """


@command(cache_app, "delete", to="fedshift.data.cache_command:delete")
def cache_delete(
    names: Annotated[list[str] | None, _cached] = None,
    *,
    unused: Annotated[float | None, Bounds(0)] = None,
    features: bool = False,
    images: bool = False,
    everything: bool = False,
    yes: bool = False,
) -> None:
    """Delete images and features that are kept; runs decode and compute them again. What a process writes stays.

    --unused with --features or --images: of these alone. The exit code is 1 if something stays.

    Args:
        names ([NAME ...]): As `fedshift cache` lists them; * stands for any letters.
        unused: What was last used, checked or made so many days ago.
        features: All features.
        images: All images.
        everything (--all): Both.
        yes: Do not ask.

    Examples:
        fedshift cache delete 'pacs*'
        fedshift cache delete --features --unused 30
    """
