"""``fedshift save``, ``save-node`` and ``predict``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedshift.export.forms import FORMS, Form
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_BATCH, MOST_ROUNDS, WHOLE_PATH, as_found, shown
from fedshift_core.paths import typed_path, user_path

app = typer.Typer()
LIBRARIES = ("torchvision", "timm")

_FORMAT = typer.Option("--format", help=f"{', '.join(FORMS[:-1])} or {FORMS[-1]} (torch.export).", metavar="FORMAT")
_OUTPUT = typer.Option("--output", "-o", help="The folder to make.", metavar="DIR")


@app.command()
def save(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    form: Annotated[str, _FORMAT] = "safetensors",
    node: Annotated[int | None, typer.Option(min=0, help="A simulated node: its model with personal parts.")] = None,
    output: Annotated[str, _OUTPUT] = "",
    server_round: Annotated[
        int | None,
        typer.Option("--round", min=1, max=MOST_ROUNDS, help="The model after this round, if the run keeps it."),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Only the shared parts: for `fedshift save-node` on real nodes.")
    ] = False,
    before: Annotated[
        bool, typer.Option("--before-adaptation", help="The model before the run adapts it for a score.")
    ] = False,
    library: Annotated[
        str,
        typer.Option("--to", metavar="LIBRARY", help="torchvision or timm: weights by the library's own names."),
    ] = "",
) -> None:
    """Save the model of a finished run into a folder, with a card and all that `fedshift predict` needs.

    The default folder is RUN/model (model-onnx, model-node-3, ... for others).
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

        written, exported = named.save(wanted, library)
        typer.echo(f"{shown(written, WHOLE_PATH)}\n{exported.lines}")
        return
    made, model = saving.save(wanted)
    _print_saved(made, model.file, model.sha256)


@app.command("save-node")
def save_node(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The folder that `fedshift save RUN --shared` wrote.")],
    form: Annotated[str, _FORMAT] = "safetensors",
    state: Annotated[
        str, typer.Option(metavar="DIR", help="The folder of the node's personal parts; default: $FEDSHIFT_STATE.")
    ] = "",
    node: Annotated[
        str, typer.Option(metavar="NAME", help="The node's folder there, such as node-0, if several are here.")
    ] = "",
    network: Annotated[
        str, typer.Option(metavar="NAME", help="The network, if the SuperNode was started with model=NAME.")
    ] = "",
    output: Annotated[str, _OUTPUT] = "",
) -> None:
    """On a real node: put its personal parts onto the weights that all nodes share, and save the whole.

    The default folder is MODEL-node.
    """
    chosen, folder = _form(form), user_path(model)
    kept = user_path(state, "--state") if state else None
    place = user_path(output, "--output") if output else None
    from fedshift.export import on_node

    output_folder, saved_model = on_node.save(on_node.Wanted(folder, chosen, kept, node, network, place))
    _print_saved(output_folder, saved_model.file, saved_model.sha256)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A saved model.")],
    files: Annotated[
        list[str], typer.Argument(metavar="FILES...", help="Images, or folders of them; folder/<class>/* is scored.")
    ],
    csv: Annotated[str, typer.Option(metavar="FILE", help="A CSV file to write instead of the lines.")] = "",
    adapt: Annotated[
        str, typer.Option(metavar="NAME", help="tent, eata (BatchNorm) or t3a (classifier): adapt to the images.")
    ] = "",
    in_order: Annotated[
        bool, typer.Option("--in-order", help="Adapt to the images in their order, not in a mixed one.")
    ] = False,
    clean: Annotated[
        str, typer.Option(metavar="DIR", help="Images like those of training, by which eata forgets less.")
    ] = "",
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_BATCH, help="Images at a time; default: 64, with tent 128, with t3a 32."),
    ] = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="SPLIT", help="test or train: of the run's data-dir, or a site in it, only these images of the run."
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show class and probability of each image, by a saved model. A folder of class folders also gives metrics.

    Exits with 1 if an image cannot be read; the others are predicted. TorchScript and exported models are programs:
    use those of people you trust.
    """
    folder, given = user_path(model), [typed_path(file) for file in files]
    table = user_path(csv, "--csv") if csv else None
    from fedshift.export import predicting
    from fedshift_app.run import console

    console.set_up(aside=True)
    like = [user_path(clean, "--clean")] if clean else []
    prediction = predicting.predict(folder, given, batch=batch, adapt=adapt, clean=like, split=split, in_order=in_order)
    if as_json:
        typer.echo(json.dumps(predicting.as_object(prediction)))
    elif text := predicting.text(prediction, rows=table is None):
        typer.echo(text)
    if table is not None:
        try:
            table.write_text(predicting.as_csv(prediction), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {shown(table)}: {error.strerror}") from None
        typer.echo(f"wrote {shown(table, WHOLE_PATH)}", err=as_json)
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
