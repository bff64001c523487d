"""``fedshift init``, ``prepare``, ``preview`` and ``cache``."""

from pathlib import Path
from typing import Annotated

import typer

from fedshift import options
from fedshift.catalog import completion
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, as_found, shown

app = typer.Typer()
cache_app = typer.Typer(
    help="List, verify and delete decoded images and computed features; without an action, list them."
)
app.add_typer(cache_app, name="cache")

CacheNames = Annotated[
    list[str] | None,
    options.arguments("[NAME ...]", "As `fedshift cache` lists them; * stands for any letters.", completion.cached),
]


@app.command()
def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A new folder; its name becomes the experiment's.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="data-dir=DIR [KEY=VALUE ...]")] = None,
) -> None:
    """Write an experiment file for images of your own: what was found, and a network, batch and rounds to begin with.

    data-dir: <site>/<class>/*, <site>/{train,test}/<class>/* or labels.csv, see docs/guide/own-data.md. Further keys:
    dataset.domains, classes, labels, seed, test_share.
    """
    from fedshift.data import init as init_module

    init_module.init(folder, arguments or [])


@app.command()
def prepare(
    dataset: Annotated[
        str,
        typer.Argument(
            help="See `fedshift datasets`; or an experiment: its name or .yaml file.",
            autocompletion=completion.prepared,
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[data-dir=DIR] [KEY=VALUE ...]")] = None,
    as_json: options.JsonObject = False,
) -> None:
    """Check a data set, decode it once with all cores, and keep it in the cache of images.

    Prints the images of each class by site and split, sizes, files that cannot be read or were not taken, and images
    that are nearly the same. Keys: data-dir, dataset.domains=[...], dataset.size=N, dataset.resize=crop,
    dataset.download=true, and the others of the section dataset. Of an experiment all keys of `fedshift run`; with
    model.precompute=on features of all images are computed, too, and kept. Interrupted, the same command goes on.
    """
    from fedshift.data import prepare as prepare_module

    raise SystemExit(prepare_module.prepare(dataset, arguments or [], as_json=as_json))


@app.command()
def preview(
    dataset: Annotated[
        str,
        typer.Argument(
            help="See `fedshift datasets`; or an experiment: its name or .yaml file.",
            autocompletion=completion.prepared,
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[data-dir=DIR] [KEY=VALUE ...]")] = None,
    output: Annotated[Path, options.path_option("The PNG to write.", "-o", "--output")] = Path("sheet.png"),
    data_dir: Annotated[Path | None, options.path_option("Folder of the images, as the key data-dir.")] = None,
    domains: Annotated[str, typer.Option(help="Domains to draw, with commas; default: those of a run.")] = "",
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    per_class: Annotated[int, typer.Option(min=1, max=20, help="Samples per class and domain.")] = 2,
    corruptions: Annotated[str, typer.Option(help="Severities, with commas: draw the 15 corruptions instead.")] = "",
    public: Annotated[str, typer.Option(help="A domain or a share: draw the public set that it makes.")] = "",
) -> None:
    """Draw samples of every domain of a data set, or of its corruptions, on one contact sheet.

    Keys: those of `fedshift prepare`. Images that cannot be read are named and left out.
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
def cache(ctx: typer.Context, as_json: options.JsonObject = False) -> None:
    """List, verify and delete decoded images and computed features; without an action, list them."""
    if ctx.invoked_subcommand is None:
        cache_list(as_json=as_json)
    elif as_json:
        raise ConfigError("cache: --json comes after list; verify and delete have none")


@cache_app.command("list")
def cache_list(as_json: options.JsonObject = False) -> None:
    """List images and features that are kept: sizes, ages, what uses them."""
    from fedshift.data import cache_command

    typer.echo(cache_command.listed(as_json=as_json))


@cache_app.command("verify")
def cache_verify(names: CacheNames = None) -> None:
    """Compare all checksums and list what is damaged, which makes the exit code 1. Nothing is changed."""
    from fedshift.data import cache_command

    raise SystemExit(cache_command.verify(names or []))


@cache_app.command("delete")
def cache_delete(
    names: CacheNames = None,
    unused: Annotated[float | None, typer.Option(min=0, help="What was last used so many days ago.")] = None,
    features: Annotated[bool, typer.Option("--features", help="All features.")] = False,
    images: Annotated[bool, typer.Option("--images", help="All images.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Both.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete images and features that are kept; runs decode and compute them again. What a process writes stays.

    --unused with --features or --images: of these alone. The exit code is 1 if something stays.
    """
    from fedshift.data import cache_command

    raise SystemExit(
        cache_command.delete(
            names or [], unused=unused, features=features, images=images, everything=everything, yes=yes
        )
    )
