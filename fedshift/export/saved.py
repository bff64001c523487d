"""A saved model: a folder with ``model.json``, one file of weights or of a program, and a card.

    model.json           description of the model and its use (:class:`SavedModel`)
    model.safetensors    its weights; or model.pt, model.onnx, model.pt2: a program
    README.md            the card (``fedshift.export.card``)

No other file is read. ``model.json`` may come from an untrusted source: this module checks and bounds its values.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, StringConstraints, ValidationError, model_validator

from fedshift.export.forms import FILES, Form
from fedshift_app.config.dataset_section import WindowEnd
from fedshift_app.config.sections import RunConfig
from fedshift_app.tasks import TaskName
from fedshift_clients.training.settings import ImageConfig
from fedshift_core import atomic_io
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import LARGEST_COUNT, MOST_ROUNDS, as_found, shown
from fedshift_core.plural import plural
from fedshift_datasets import base
from fedshift_datasets.base import Exif, Resize

VERSION: Literal[1] = 1  # of model.json
MODEL_JSON, CARD = "model.json", "README.md"
MOST_BYTES = 1 << 20  # of model.json
MOST_CLASSES = 10_000
INPUT = "float32 (B, 3, size, size), RGB, 0 to 1, not normalised: the model subtracts the mean"
OUTPUT = "float32 (B, C), scores of the classes in their order; softmax makes probabilities of them"

MOST_TEXT, MOST_LINES = 500, 100
Text = Annotated[str, StringConstraints(max_length=MOST_TEXT)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=300)]
Percent = Annotated[float, Field(ge=0, le=100)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Base of the parts of ``model.json``."""


class Site(_Strict):
    """The result on the test images of a site."""

    accuracy: Percent | None  # or the score of another task; None if no node answered
    images: Annotated[int, Field(ge=0, le=LARGEST_COUNT)] | None = None  # number of test images; None if unknown
    balanced_accuracy: Percent | None = None  # None where no node counted classes (docs/guide/figures.md)
    macro_f1: Percent | None = None


class Measured(_Strict):
    """The scores of the run's models, in a round that was scored on all test images."""

    of: Text  # which models: the global one, or those of the nodes
    server_round: int = Field(ge=1, le=MOST_ROUNDS)
    sites: dict[Name, Site] = Field(max_length=1000)
    average: Percent | None  # over the sites that are known


class Origin(_Strict):
    """The run that made the model."""

    experiment: Name
    dataset: Name
    server_round: int = Field(ge=1, le=MOST_ROUNDS)  # the round after which the weights were saved
    rounds: int = Field(ge=1, le=MOST_ROUNDS)
    nodes: int = Field(ge=0, le=LARGEST_COUNT)
    images: int | None = Field(None, ge=0)  # training images of all nodes; None if unknown
    seed: int = Field(ge=0)
    engine: Name
    run_id: str = Field(pattern=r"^([0-9a-f]{32})?$")
    resumed_after: tuple[Annotated[int, Field(ge=0, le=MOST_ROUNDS)], ...] = Field((), max_length=10_000)
    versions: dict[Name, Text] = Field(max_length=100)
    commit: Text = ""


class Shown(_Strict):
    """A section of the card about the run; the first row of its table, if it has one, is the heading."""

    title: Name
    notes: tuple[Text, ...] = Field((), max_length=MOST_LINES)
    table: tuple[tuple[Text, ...], ...] = Field((), max_length=MOST_LINES)


class SavedModel(_Strict):
    """The content of ``model.json``.

    Attributes:
        fedshift_model: The version of this description.
        form: The form of the saved model.
        file: Its file.
        bytes: Size of the file.
        sha256: Hash of the file.
        parts: ``global``: the model of all nodes; ``node``: that of one, personal parts included; ``shared``: what
            travels, without the personal parts, which a node's owner puts on (``fedshift save-node``).
        node: Which node's; empty for none.
        site: Its site, where it is known.
        task: The run's.
        classes: Names, in the order of the scores.
        size: Height and width of the images in pixels.
        resize: The conversion of an image to a square, as ``dataset.resize``.
        window: The values that become black and white in some files, as ``dataset.window``.
        exif: The use of the EXIF orientation, as ``dataset.exif``.
        mean: By channel, of images from 0 to 1; taken off inside the model.
        std: Likewise.
        input: The input of a program.
        output: Its output.
        network: Name of the network.
        batchnorm: The run's ``model.bn``.
        method: ``name`` and parameters.
        modules: The modules in the network, likewise.
        parameters: Numbers in the weights, buffers included.
        knowledge: Further arrays that classify: in the file of weights under ``knowledge/NAME``.
        before: The run's changes to a model before a score, which this model lacks; empty for none.
        measured: The run's scores; None if this model was not scored.
        origin: The run.
        run: What the card says of the run.
        configuration: The run's configuration, without local folders, to build the network (safetensors only).
    """

    fedshift_model: Literal[1] = VERSION
    form: Form
    file: str
    bytes: int = Field(ge=0)
    sha256: Digest
    parts: Literal["global", "node", "shared"]
    node: Text = ""
    site: Text = ""
    task: TaskName = "classification"
    classes: tuple[Name, ...] = Field(min_length=1, max_length=MOST_CLASSES)
    size: int = Field(ge=1, le=4096)
    resize: Resize = "squash"
    window: tuple[WindowEnd, WindowEnd] | None = None
    exif: Exif = "ignore"
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    input: Text = INPUT
    output: Text = OUTPUT
    network: Name
    batchnorm: Name
    method: dict[str, Any]
    modules: tuple[dict[str, Any], ...] = Field((), max_length=100)
    parameters: int = Field(ge=0)
    knowledge: tuple[Name, ...] = Field((), max_length=100)
    before: Text = ""
    measured: Measured | None = None
    origin: Origin
    run: tuple[Shown, ...] = Field((), max_length=10)
    configuration: dict[str, Any] = {}

    def images(self) -> base.Form:
        """Return the conversion of images to squares of 8 bits per channel."""
        return base.Form(self.resize, self.window, self.exif)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.file != FILES[self.form]:
            raise ValueError(f"file: expected {FILES[self.form]} for the form {self.form}, found {as_found(self.file)}")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("classes: expected different names")
        ImageConfig(mean=self.mean, std=self.std)
        if self.parts == "shared" and self.form != "safetensors":
            raise ValueError(f"parts: shared weights have the form safetensors, found {self.form}")
        if (self.form == "safetensors") != bool(self.configuration):
            raise ValueError("configuration: there is one for safetensors, and for no other form")
        return self


def portable(config: RunConfig) -> dict[str, Any]:
    """Return a run's configuration without the settings of its machine."""
    content: dict[str, Any] = config.model_dump(mode="json")
    content["dataset"] = content["dataset"] | {"data_dir": ""}
    content["model"] = content["model"] | {"weights": ""}  # its SHA-256 stays
    # Files of a run's own that define anything of a model keep it from being saved as weights.
    return content | {"tracking": "none", "profile": False, "plugins": []}


def write(folder: Path, fields: Mapping[str, Any], data: bytes, card: Callable[[SavedModel], str]) -> SavedModel:
    """Write a saved model; the folder appears complete or not at all.

    Args:
        folder: The folder to make.
        fields: All of :class:`SavedModel` but ``file``, ``bytes`` and ``sha256``.
        data: The weights, or the program.
        card: Returns the card of the model.

    Raises:
        DiskError: If it exists, or cannot be made or written to.
    """
    model = described(fields, data, shown(folder))
    about = as_json(model.model_dump(mode="json"))
    write_folder(folder, {model.file: data, MODEL_JSON: about, CARD: card(model).encode()})
    return model


def as_json(content: Mapping[str, Any]) -> bytes:
    """Return a description of a model as a file has it."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder of files, which appears complete or not at all.

    Raises:
        DiskError: If it exists, or cannot be made or written to.
    """
    with atomic_io.writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", suffix=atomic_io.PART, dir=folder.parent) as own:
            part = Path(own) / folder.name
            part.mkdir()
            for name, data in files.items():
                atomic_io.write_durably(part / name, data)
            part.rename(folder)


def described(fields: Mapping[str, Any], data: bytes, where: str) -> SavedModel:
    """Return the content of ``model.json``.

    Args:
        fields: As of :func:`write`.
        data: The weights, or the program.
        where: The place, for messages.

    Raises:
        ConfigError: With the first field that is wrong.
    """
    with in_a_line(where):
        file, digest = FILES[fields["form"]], hashlib.sha256(data).hexdigest()
        return SavedModel(**fields, file=file, bytes=len(data), sha256=digest)


def check_free(folder: Path) -> None:
    """Refuse a folder that exists.

    Raises:
        ConfigError: With the folder.
    """
    if folder.exists():
        raise ConfigError(f"--output: {shown(folder)} exists already; choose another one, or remove it")


def read(folder: Path) -> tuple[SavedModel, Path]:
    """Read ``model.json``, and check the model's file against its hash.

    Returns:
        The content, and the file.

    Raises:
        ConfigError: If the folder holds no saved model, or an invalid one.
    """
    path = folder / MODEL_JSON
    if not path.is_file():
        raise ConfigError(f"{shown(folder)} is not a saved model: it has no {MODEL_JSON} (fedshift save makes one)")
    model = _parsed(path)
    file = folder / model.file
    if not file.is_file():
        raise ConfigError(f"{shown(file)} is missing; {MODEL_JSON} names it")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != model.sha256:
        raise ConfigError(f"{shown(file)} has changed: its SHA-256 differs from that in {MODEL_JSON}")
    return model, file


def _parsed(path: Path) -> SavedModel:
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ValueError(f"{plural(size, 'byte')}, allowed are {MOST_BYTES} at most")
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"expected an object, found {as_found(content)}")
        if (version := content.get("fedshift_model")) != VERSION:
            raise ValueError(f"fedshift_model is {as_found(version)}, this version reads {VERSION}")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{shown(path)} cannot be read: {error}") from None
    with in_a_line(shown(path)):
        return SavedModel.model_validate(content)


@contextmanager
def in_a_line(where: str) -> Iterator[None]:
    """Convert a validation error of ``model.json`` into a line that names the key.

    Raises:
        ConfigError: With the first key.
    """
    try:
        yield
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        message = str(problem["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{where}: {f'{key}: ' if key else ''}{message}") from None


def weights_of(file: Path) -> dict[str, Any]:
    """Return the arrays of a safetensors file by name.

    Raises:
        FedShiftError: If it is none.
    """
    try:
        return dict(atomic_io.unpack(file.read_bytes()))
    except ValueError as error:
        raise FedShiftError(f"{shown(file)}: {error}") from None
