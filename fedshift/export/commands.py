"""``fedshift save``, ``save-node`` and ``predict``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedshift import export
from fedshift.export.forms import FORMS, Form
from fedshift.run.frames import written
from fedshift.run.options import Bounds, command
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_ROUNDS, WHOLE_PATH, as_found, shown
from fedshift_core.paths import user_path

app = typer.Typer()
LIBRARIES = ("torchvision", "timm")


@command(app)
def save(
    run: str,
    *,
    form: str = "safetensors",
    node: Annotated[int | None, Bounds(0)] = None,
    output: str = "",
    server_round: Annotated[int | None, Bounds(1, MOST_ROUNDS)] = None,
    shared: bool = False,
    before: bool = False,
    library: str = "",
) -> None:
    """Save the model of a finished run into a folder, with a card and all that `fedshift predict` needs.

    The default folder is RUN/model (model-onnx, model-node-3, ... for others).

    Args:
        run (RUN): A run folder.
        form (--format FORMAT): safetensors, torchscript, onnx or exported (torch.export).
        node: A simulated node: its model with personal parts.
        output (--output, -o DIR): The folder to make.
        server_round (--round): The model after this round, if the run keeps it.
        shared: Only the shared parts: for `fedshift save-node` on real nodes.
        before (--before-adaptation): The model before the run adapts it for a score.
        library (--to LIBRARY): torchvision or timm: weights by the library's own names.

    Examples:
        fedshift save runs/FOLDER
        fedshift save runs/FOLDER --format onnx -o model
    """
    chosen, folder = _form(form), user_path(run)
    place = user_path(output, "--output") if output else None
    from fedshift.export import saving

    wanted = saving.Wanted(folder, chosen, node, shared, before, server_round, place)
    if library:
        if library not in LIBRARIES or form != "safetensors":
            raise ConfigError(
                f"--to: {as_found(library)} with --format {form}; allowed are {' and '.join(LIBRARIES)}, as safetensors"
            )
        from fedshift.export import library as named

        folder, exported = named.save(wanted, library)
        typer.echo(f"{shown(folder, WHOLE_PATH)}\n{exported.lines}")
        return
    made, model = saving.save(wanted)
    _print_saved(made, model.file, model.sha256)


@command(app)
def save_node(
    model: str, *, form: str = "safetensors", state: str = "", node: str = "", network: str = "", output: str = ""
) -> None:
    """On a real node: put its personal parts onto the weights that all nodes share, and save the whole.

    The default folder is MODEL-node.

    Args:
        model (MODEL): The folder that `fedshift save RUN --shared` wrote.
        form (--format FORMAT): safetensors, torchscript, onnx or exported (torch.export).
        state (--state DIR): The folder of the node's personal parts; default: $FEDSHIFT_STATE.
        node (--node NAME): The node's folder there, such as node-0, if several are here.
        network (--network NAME): The network, if the SuperNode was started with model=NAME.
        output (--output, -o DIR): The folder to make.

    Examples:
        fedshift save-node MODEL
        fedshift save-node MODEL --node NODE -o mine
    """
    chosen, folder = _form(form), user_path(model)
    kept = user_path(state, "--state") if state else None
    place = user_path(output, "--output") if output else None
    from fedshift.export import on_node

    output_folder, saved_model = on_node.save(on_node.Wanted(folder, chosen, kept, node, network, place))
    _print_saved(output_folder, saved_model.file, saved_model.sha256)


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


def _form(given: str) -> Form:
    for form in FORMS:
        if given == form:
            return form
    raise ConfigError(f"--format: {as_found(given)} is unknown; there are {', '.join(FORMS)}")


def _print_saved(folder: Path, file: str, digest: str) -> None:
    typer.echo(f"saved: {shown(folder, WHOLE_PATH)} ({file}, SHA-256 {digest})")
