"""``fedshift init``, ``prepare`` and ``preview``."""

from pathlib import Path
from typing import Annotated

import typer

from fedshift import options
from fedshift.catalog import completion
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, as_found, shown

app = typer.Typer()


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
            help="See `fedshift datasets`; or the .yaml file of an experiment.", autocompletion=completion.data_sets
        ),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[data-dir=DIR] [KEY=VALUE ...]")] = None,
    as_json: options.JsonObject = False,
) -> None:
    """Check a data set, decode it once with all cores, and keep it in the cache of images.

    Tells the images of each class by site and split, sizes, files that cannot be read or were not taken, and images
    that are nearly the same. Keys: data-dir, dataset.domains=[...], dataset.size=N, dataset.resize=crop,
    dataset.download=true, and the others of the section dataset.
    """
    from fedshift.data import prepare as prepare_module

    raise SystemExit(prepare_module.prepare(dataset, arguments or [], as_json=as_json))


@app.command()
def preview(
    dataset: Annotated[str, typer.Argument(help="See `fedshift datasets`.", autocompletion=completion.data_sets)],
    output: Annotated[Path, options.path_option("The PNG to write.", "-o", "--output")] = Path("sheet.png"),
    data_dir: Annotated[Path | None, options.path_option("Folder of the images.")] = None,
    domains: Annotated[str, typer.Option(help="Domains to draw, with commas; default: all.")] = "",
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    per_class: Annotated[int, typer.Option(min=1, max=20, help="Samples per class and domain.")] = 2,
    corruptions: Annotated[str, typer.Option(help="Severities, with commas: draw the 15 corruptions instead.")] = "",
    public: Annotated[str, typer.Option(help="A domain or a share: draw the public set that it makes.")] = "",
) -> None:
    """Draw samples of every domain of a data set, or of its corruptions, on one contact sheet."""
    from datasets.base import SPLITS, Split
    from fedshift.data import prepare as prepare_module

    if split not in SPLITS:
        raise ConfigError(f"--split is {as_found(split)}; allowed are {' and '.join(SPLITS)}")
    part: Split = "train" if split == "train" else "test"
    sheet = prepare_module.preview(dataset, str(data_dir or ""), domains, part, per_class, corruptions, public)
    try:
        sheet.save(output)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {shown(output)}: {shown(error)}") from None
    typer.echo(f"wrote {shown(output.resolve(), WHOLE_PATH)}")
