"""``fedshift save``, ``save-node`` and ``predict``."""

import json
from typing import Any

import typer

from fedshift import export
from fedshift.run.frames import written
from fedshift.run.options import command
from fedshift_app.run import exit_codes
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.paths import user_path

app = typer.Typer()


@command(app, of=export.save)
def save(run: str, **of: Any) -> None:
    """Save the model of a finished run into a folder, with a card and all that `fedshift predict` needs.

    The default folder is RUN/model (model-onnx, model-node-3, ... for others).

    Args:
        run (RUN): A run folder.
        of: Options of the saved model.

    Examples:
        fedshift save runs/FOLDER
        fedshift save runs/FOLDER --format onnx -o model
    """
    typer.echo(export.save(run, **of)[1])


@command(app, of=export.save_node)
def save_node(model: str, **of: Any) -> None:
    """On a real node: put its personal parts onto the weights that all nodes share, and save the whole.

    The default folder is MODEL-node.

    Args:
        model (MODEL): The folder that `fedshift save RUN --shared` wrote.
        of: Options of the saved model.

    Examples:
        fedshift save-node MODEL
        fedshift save-node MODEL --node NODE -o mine
    """
    typer.echo(export.save_node(model, **of)[1])


@command(app, to="fedshift.export.withdrawing:withdraw")
def withdraw(run: str, arguments: list[str], *, dry: bool = False) -> None:
    """Take a site, or some of its patients, out of a model of fed3r or fedcgs, as if it had never taken part.

    Its sums are subtracted and the head is solved again: to the bit the model of a run without it. The run folder is
    written anew without the site, and the old one removed with all that was made of it; a receipt says so. Of a run
    with secure sums, and for patients, the site gives its sums (`fedshift site withdraw`). Other methods train:
    the command then prints the one that trains again without the site.

    Keys: node, a number or a domain; sums, the site's file, with key, its node's public key; sign, the SuperLink's
    server.key, for the receipt; method.ridge, where the run chose it by validation images.

    Args:
        run (RUN): A finished run's folder.
        arguments (node=NAME [KEY=VALUE ...]): Keys, see above.
        dry (--dry-run): Only show what would be subtracted and removed.

    Examples:
        fedshift withdraw runs/FOLDER node=sketch --dry-run
        fedshift withdraw runs/FOLDER node=north sums=north.withdrawal key=north.pub sign=federation/server.key
    """


@command(app, of=export.predict)
def predict(model: str, files: list[str], *, csv: str = "", as_json: bool = False, **of: Any) -> None:
    """Show class and probability of each image, by a saved model. A folder of class folders also gives metrics.

    Exits with 1 if an image cannot be read; the others are predicted. TorchScript and exported models are programs:
    use those of people you trust.

    Args:
        model (MODEL): A saved model.
        files (FILES...): Images, or folders of them; folder/<class>/* is scored.
        csv (--csv FILE): A CSV file to write instead of the lines.
        as_json: Print one JSON object.
        of: Options of the prediction.

    Examples:
        fedshift predict MODEL image.png
        fedshift predict MODEL images --csv scores.csv
    """
    table = user_path(csv, "--csv") if csv else None
    from fedshift.export import predicting
    from fedshift_app.run import console

    console.set_up(aside=True)
    prediction = export.predict(model, files, **of)
    if as_json:
        typer.echo(json.dumps(predicting.as_object(prediction)))
    elif text := predicting.text(prediction, rows=table is None):
        typer.echo(text)
    if table is not None:
        made = written(table, lambda _: predicting.as_csv(prediction))
        typer.echo(f"wrote {shown(made, WHOLE_PATH)}", err=as_json)
    for line in () if as_json else prediction.notes:
        typer.echo(line, err=True)
    for line in prediction.broken:
        typer.echo(f"error: {line}", err=True)
    if prediction.broken:
        raise SystemExit(exit_codes.FAILED)
