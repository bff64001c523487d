"""The section ``dataset`` of a run's configuration: its keys, types and ranges."""

import re
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from fedshift_core.features import with_rooms
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import as_found
from fedshift_core.params import SectionOfRooms, Seed
from fedshift_datasets import catalog
from fedshift_datasets.base import TEST_SHARE, Dataset, Exif, Form, Names, Patients, Resize, Source
from fedshift_datasets.sets import partitioned

T = TypeVar("T")

#: Form of a name that is safe as the name of a file or folder.
FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,99}")
_Counts = Annotated[dict[str, int], AfterValidator(FrozenDict)]
Argument = str | bool | int | float | tuple[int, ...] | tuple[float, ...] | _Counts  # of a partitioner
WindowEnd = Annotated[float, Field(ge=-1e9, le=1e9)]


@with_rooms("dataset")
class DatasetConfig(SectionOfRooms):
    """Which images."""

    name: str
    """Name of the data set, as `fedshift datasets` lists it, or a user's own word with `dataset.of`."""
    of: str = ""
    """Data set that reads the images where `dataset.name` is a user's own word, such as folders; empty: `dataset.name`.

    """
    domains: tuple[str, ...]
    """Domains of this run, in the order of the tables."""
    classes: tuple[str, ...] = ()
    """Class names of a folders data set, in the order of the labels; empty for data sets that have their own."""
    data_dir: str = ""
    """Folder of the images; empty: the data set generates or fetches its own."""
    features: str = ""
    """File (.npz) in data_dir with features of the images, computed elsewhere, for those of an encoder; the network is
    features:D, of their width, frozen.
    """
    hub: str = ""
    """OWNER/NAME of a set of the Hugging Face hub that `fedshift get` keeps, in place of data_dir; with `dataset.of:
    flwr-datasets` one that flwr-datasets loads.
    """
    partitioner: Annotated[dict[str, Argument], AfterValidator(FrozenDict)] = FrozenDict({})
    """Partitioner of flwr-datasets that divides the set into sites, `name` and its arguments; for `dataset.of:
    flwr-datasets`.
    """
    columns: Annotated[dict[str, str], AfterValidator(FrozenDict)] = FrozenDict({})
    """Columns `image` and `label` of that set, where it has several."""
    classes_stated: bool = True
    """Whether somebody stated the classes; FedShift sets it to false where they are folder names by alphabet."""
    masks: bool = False
    """Whether each image has a mask, a class for each pixel; task=segmentation sets it."""
    labels: str = ""
    """Table (.csv) in data_dir that names the images of a folders data set; empty: labels.csv where there is one."""
    download: bool = False
    """Whether torchvision may download what it can."""
    seed: Seed = 0
    """Seed of generated images, and of the split of folders."""
    size: int | None = Field(None, ge=16, le=1024)
    """Height and width of the images in pixels; null: the data set's own."""
    resize: Resize = "squash"
    """How an image becomes square: squash both sides, crop the middle of the longer side, or pad the shorter side with
    black.
    """
    window: tuple[WindowEnd, WindowEnd] | None = None
    """Pixel values [low, high] that become black and white in files of more than 8 bits a channel and in grey DICOM
    files of any depth, there in modality values (Hounsfield); null: the full range, or the DICOM file's own window.
    """
    exif: Exif = "ignore"
    """Orientation stated in a file: ignore keeps the pixels as stored, apply turns or mirrors the image."""
    test_share: float | None = Field(None, gt=0, lt=1)
    """Share of each class of a folders data set that is the test split where the images do not say; null: 0.2."""
    skip_broken: bool = False
    """Whether a run continues without images that cannot be read, and names them."""
    patients: Patients = "all"
    """Patients whose images stay together: all that are known, in every part of the images; or those of the table of a
    folders data set and of npz files alone (listed), and in train and test alone, as before this key.
    """

    @field_validator("window")
    @classmethod
    def _rises(cls, window: tuple[float, float] | None) -> tuple[float, float] | None:
        if window is not None and not window[0] < window[1]:
            raise ValueError(f"expected [low, high] with low below high, found [{window[0]:g}, {window[1]:g}]")
        return window

    def form(self) -> Form:
        """Return how images become squares of 8 bits a channel."""
        return Form(self.resize, self.window, self.exif)

    @field_validator("labels", "features")
    @classmethod
    def _names_a_file(cls, file: str, info: ValidationInfo) -> str:
        # A server sends it to nodes, so it must not lead to other files.
        kind = ".csv" if info.field_name == "labels" else ".npz"
        if file and not (FOLDER_NAME.fullmatch(file) and file.isprintable() and file.endswith(kind)):
            raise ValueError(f"{as_found(file)}; allowed is the name of a {kind} file right in data-dir")
        return file

    @field_validator("partitioner", "columns")
    @classmethod
    def _divides(cls, value: T, info: ValidationInfo) -> T:
        kind = info.data.get("of") or info.data.get("name")
        if value and kind != partitioned.NAME:
            raise ValueError(f"found {as_found(value)} with {kind}, which reads none; it is for {partitioned.NAME}")
        return value

    @property
    def kind(self) -> str:
        """The name of the data set that reads the images."""
        return self.of or self.name

    @property
    def pixels(self) -> int:
        """Height and width of the images."""
        return self.size or self.known().size

    def source(self, data_dir: Path | None = None) -> Source:
        """Return where the images come from on this machine.

        Args:
            data_dir: A real node's own folder; None for the configuration's.
        """
        return Source(
            data_dir or (Path(self.data_dir) if self.data_dir else None),
            self.download,
            self.seed,
            self.classes,
            self.labels,
            TEST_SHARE if self.test_share is None else self.test_share,
            self.skip_broken,
            self.classes_stated,
            self.patients,
            self.masks,
        )

    def known(self) -> Dataset:
        """Return the data set with this run's domains and classes.

        Raises:
            ConfigError: If there is no such data set, or its package cannot be used.
        """
        return catalog.stated(self.kind, Names(self.domains, self.classes), self.name)
