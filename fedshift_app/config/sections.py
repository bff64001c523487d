"""The sections of a run's configuration with their keys, types and ranges."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from fedshift_app.config import registry
from fedshift_app.config.trackers import Trackers
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.frozen import FrozenDict, Section
from fedshift_core.limits import MOST_KEPT, MOST_NODES, as_found
from fedshift_core.options.averaging import AggregationConfig, ServerConfig
from fedshift_core.options.privacy import PrivacyConfig
from fedshift_core.options.scoring import EvaluateConfig
from fedshift_core.options.statistics import StatisticsConfig
from fedshift_core.params import ConfigModel, Params, RunRounds, Seconds, Seed
from fedshift_core.spelling import meant
from fedshift_datasets import catalog
from fedshift_datasets.base import TEST_SHARE, Dataset, Exif, Form, Names, Patients, Resize, Source
from fedshift_datasets.corruptions import CORRUPTIONS
from fedshift_datasets.partition.allocation import Allocation

#: Form of a name that is safe as the name of a file or folder.
FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,99}")
MOST_BYTES = 150  # of such a name; a folder's name of 255 bytes holds method, seed and time as well

WindowEnd = Annotated[float, Field(ge=-1e9, le=1e9)]


def _listed(given: Any) -> Any:
    """Return the rounds in a value: a list, one number, or numbers with commas."""
    if given is None:
        return ()
    if isinstance(given, str):
        return tuple(part.strip() for part in given.strip("[] ").split(",") if part.strip())
    return (given,) if isinstance(given, int) and not isinstance(given, bool) else given


def _in_order(rounds: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(rounds)))


KeptRounds = Annotated[
    tuple[int, ...], BeforeValidator(_listed), Field(max_length=MOST_KEPT), AfterValidator(_in_order)
]


class DatasetConfig(ConfigModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Which images."""

    name: str = Field(
        description="Name of the data set, as `fedshift datasets` lists it, or a user's own word with `dataset.of`."
    )
    of: str = Field(
        "",
        description="Data set that reads the images where `dataset.name` is a user's own word, such as folders; "
        "empty: `dataset.name`.",
    )
    domains: tuple[str, ...] = Field(description="Domains of this run, in the order of the tables.")
    classes: tuple[str, ...] = Field(
        (),
        description="Class names of a folders data set, in the order of the labels; empty for data "
        "sets that have their own.",
    )
    data_dir: str = Field("", description="Folder of the images; empty: the data set generates or fetches its own.")
    classes_stated: bool = Field(
        True,
        description="Whether somebody stated the classes; FedShift sets it to false where they are "
        "folder names by alphabet.",
    )
    labels: str = Field(
        "",
        description="Table (.csv) in data_dir that names the images of a folders data set; empty: "
        "labels.csv where there is one.",
    )
    download: bool = Field(False, description="Whether torchvision may download what it can.")
    seed: Seed = Field(0, description="Seed of generated images, and of the split of folders.")
    size: int | None = Field(
        None, ge=16, le=1024, description="Height and width of the images in pixels; null: the data set's own."
    )
    resize: Resize = Field(
        "squash",
        description="How an image becomes square: squash both sides, crop the middle of the longer side, or pad the "
        "shorter side with black.",
    )
    window: tuple[WindowEnd, WindowEnd] | None = Field(
        None,
        description="Pixel values [low, high] that become black and white in files of more than 8 bits a channel and "
        "in grey DICOM files of any depth, there in modality values (Hounsfield); null: the full range, or the DICOM "
        "file's own window.",
    )
    exif: Exif = Field(
        "ignore",
        description="Orientation stated in a file: ignore keeps the pixels as stored, apply turns or "
        "mirrors the image.",
    )
    test_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of each class of a folders data set that is the test split where the "
        "images do not say; null: 0.2.",
    )
    skip_broken: bool = Field(
        False, description="Whether a run continues without images that cannot be read, and names them."
    )
    patients: Patients = Field(
        "all",
        description="Patients whose images stay together: all that are known, in every part of the images; or those "
        "of the table of a folders data set and of npz files alone (listed), and in train and test alone, as before "
        "this key.",
    )
    #: A real node brings its copy of the public images.
    public: str | float | None = Field(
        None,
        description="Public images that all nodes have and none trains on as its own: a domain outside "
        "`dataset.domains`, or a share (above 0, below 1) of each domain; null: none.",
    )

    @field_validator("public", mode="before")
    @classmethod
    def _domain_or_share(cls, public: Any) -> Any:
        share = isinstance(public, int | float) and not isinstance(public, bool)
        if not (0 < public < 1 if share else public is None or (isinstance(public, str) and public)):
            raise ValueError(f"expected a domain, or a share above 0 and below 1, found {as_found(public)}")
        return public

    @property
    def public_share(self) -> float:
        """The share of the images of each domain that is public; 0 where none is."""
        return self.public if isinstance(self.public, float) else 0.0

    @property
    def public_domain(self) -> str:
        """The domain that is public; empty where none is."""
        return self.public if isinstance(self.public, str) else ""

    @field_validator("window")
    @classmethod
    def _rises(cls, window: tuple[float, float] | None) -> tuple[float, float] | None:
        if window is not None and not window[0] < window[1]:
            raise ValueError(f"expected [low, high] with low below high, found [{window[0]:g}, {window[1]:g}]")
        return window

    def form(self) -> Form:
        """Return how images become squares of 8 bits a channel."""
        return Form(self.resize, self.window, self.exif)

    @field_validator("labels")
    @classmethod
    def _names_a_file(cls, labels: str) -> str:
        # A server sends it to nodes, so it must not lead to other files.
        if labels and not (FOLDER_NAME.fullmatch(labels) and labels.isprintable() and labels.endswith(".csv")):
            raise ValueError(f"{as_found(labels)}; allowed is the name of a .csv file right in data-dir")
        return labels

    @property
    def kind(self) -> str:
        """The name of the data set that reads the images."""
        return self.of or self.name

    def source(self, data_dir: Path | None = None) -> Source:
        """Return where the images come from on this machine.

        Args:
            data_dir: A real node's own folder; None for the configuration's.
        """
        there = data_dir or (Path(self.data_dir) if self.data_dir else None)
        share = TEST_SHARE if self.test_share is None else self.test_share
        return Source(
            there,
            self.download,
            self.seed,
            self.classes,
            self.labels,
            share,
            self.skip_broken,
            self.classes_stated,
            self.patients,
        )

    def known(self) -> Dataset:
        """Return the data set with this run's domains and classes.

        Raises:
            ConfigError: If there is no such data set, or its package cannot be used.
        """
        return catalog.stated(self.kind, Names(self.domains, self.classes), self.name)


class ShiftConfig(ConfigModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How test images differ from training images (FedICON, section 5). Training images are never touched."""

    name: Literal["none", "corruption", "domain", "attribute"] = Field(
        "none",
        description="Shift of the test images: none, corruption of every domain, a held-out domain, or a later test "
        "set of the same classes (attribute).",
    )
    corruption: str = Field(
        "random",
        description="One of the 15 corruptions of Hendrycks and Dietterich, or random: one drawn for each image.",
    )
    severity: int = Field(5, ge=0, le=5, description="Severity of the corruption; 0 leaves the images as they are.")
    label_mix: Literal["none", "own"] = Field(
        "none",
        description="Test set of a simulated node: none is its domain's as it is, own is drawn with the class "
        "proportions of its training images.",
    )

    @field_validator("corruption")
    @classmethod
    def _known(cls, corruption: str) -> str:
        if corruption not in ("random", *CORRUPTIONS):
            raise ValueError(
                f"{as_found(corruption)} is unknown; there are random, {', '.join(CORRUPTIONS)}"
                f"{meant(corruption, ('random', *CORRUPTIONS))}"
            )
        return corruption


class FederationConfig(ConfigModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Who takes part in a round, and how long the server waits."""

    participation: float = Field(1.0, gt=0, le=1, description="Share of the nodes that train in a round.")
    min_nodes: int = Field(
        2, ge=1, le=MOST_NODES, description="Number of nodes that must be connected before each round of a deployment."
    )
    node_timeout: Seconds = Field(
        120.0,
        description="Seconds to wait for nodes to connect (at least 600 in simulation), and again for evaluation.",
    )
    round_timeout: Seconds = Field(3600.0, description="Seconds that the training of a round may take.")
    #: Weights and features of these models stay below 1e3; 1e30 is finite, but dominates an average.
    max_value: float = Field(
        1e6,
        gt=0,
        description="Largest absolute value in what a node sends; a node that exceeds it is left out of the round.",
    )
    #: The norm of (received - sent) is divided by the norm of the sent weights and, from a tenth of the limit on, by
    #: the median of the round's nodes; a node with more images than most may go farther in proportion. The norm of
    #: prototypes and other arrays is divided by the nodes' median. Honest training stayed below 1, 2 and 8 where it
    #: went well, and reached 19 shortly before it diverged.
    max_update: float = Field(
        10.0,
        gt=0,
        description="Largest relative change of the weights by a node, and largest ratio of its other arrays' norm to"
        " the nodes' median; a node that exceeds it is left out.",
    )
    #: The server cannot verify a node's number of images; a log line names a node that is limited.
    max_images: float = Field(
        100.0, ge=1, description="Upper limit of a node's weight, in multiples of the median number of training images."
    )
    #: docs/deploy/secure-sums.md: which methods it fits, and what it does not protect from.
    secure_sums: bool = Field(
        False,
        description="Whether the server learns only sums over nodes, of weights and contributions (on or off).",
    )
    secure_sums_nodes: int = Field(
        3, ge=2, le=MOST_NODES, description="Least number of nodes in a secure sum; a round with fewer is refused."
    )
    secure_sums_least: float = Field(
        3.0,
        ge=1,
        le=MOST_NODES,
        description="Least effective number of nodes in a secure sum, (sum f)^2 / sum f^2 of their weights f: n of n "
        "nodes that weigh the same. A round with fewer is refused.",
    )
    secure_sums_range: float = Field(
        64.0,
        gt=0,
        le=2**20,
        description="Largest absolute change of a weight, and number of a contribution, in a secure sum; a node with a "
        "larger one sends nothing. Its rounding error is this over 2^32 / nodes.",
    )
    log_received: bool = Field(
        False,
        description="Whether the server writes down all that it receives from each node: name, type, shape, norm and "
        "SHA-256 (`received.jsonl` in the run folder).",
    )


class RunConfig(ConfigModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """All settings that decide the numbers of a run, and whether its time is measured."""

    experiment: str = Field(description="Name of the experiment, which is part of the run folder's name.")
    dataset: DatasetConfig = Field(description="Which images.")
    images: ImageConfig = Field(ImageConfig(), description="From images to what the network sees.")
    allocation: Allocation = Field(Allocation(), description="How nodes and images are divided in simulation.")
    model: ModelConfig = Field(description="Which network.")
    train: TrainConfig = Field(description="Local training.")
    method: Section = Field(description="Name of the method (`fedshift methods`) and its parameters.")
    modules: tuple[Section, ...] = Field(
        (),
        description="Modules added to the network (`fedshift modules`), each with its name and "
        "parameters; empty: none.",
    )
    adapt: Section = Field(
        FrozenDict({"name": registry.NONE}),
        description="Adaptation before a test (`fedshift adaptations`), with its name and parameters;"
        " name none: no adaptation.",
    )
    features: tuple[Section, ...] = Field(
        (),
        description="Features of other packages (docs/guide/own-method.md), each with its name and parameters; empty: "
        "none.",
    )
    aggregation: AggregationConfig = Field(
        AggregationConfig(), description="How updates become the next global weights."
    )
    server: ServerConfig = Field(ServerConfig(), description="Server optimizer.")
    plugins: tuple[str, ...] = Field((), description="Paths of a user's own Python files, in simulation only.")
    federation: FederationConfig = Field(
        FederationConfig(), description="Who takes part in a round, and how long the server waits."
    )
    statistics: StatisticsConfig = Field(
        StatisticsConfig(), description="What each node tells once, before it trains, of its training images."
    )
    privacy: PrivacyConfig = Field(PrivacyConfig(), description="Noise on what leaves a node.")
    shift: ShiftConfig = Field(ShiftConfig(), description="How test images differ from training images.")
    evaluate: EvaluateConfig = Field(EvaluateConfig(), description="Which models are scored in which rounds.")
    keep: Literal["last", "best-validation"] = Field(
        "last",
        description="Model that a run keeps: of the last round, or of the round with the best validation accuracy, of "
        "equal ones the one with the lowest validation loss.",
    )
    keep_rounds: KeptRounds = Field(
        (), description="Rounds whose checkpoints stay in addition, for figures over the rounds; empty: none."
    )
    #: Where nodes keep private parts, or a round is kept by validation, each round has one all the same.
    checkpoint_seconds: float = Field(
        0.0,
        ge=0,
        le=86_400,
        description="Least number of seconds from one checkpoint to the next; the first and the last round always have "
        "one, 0: each round.",
    )
    rounds: RunRounds = Field(
        description="Number of rounds; with `evaluate.patience` the largest number; 0 trains nothing and scores the "
        "initial weights."
    )
    seed: Seed = Field(0, description="Seed of the run: of initial weights, allocation, sampling and augmentation.")
    profile: bool = Field(False, description="Whether the time of each round is measured by phase.")
    tracking: Trackers = Field(
        (), description="Trackers that show the rounds in addition to metrics.jsonl; empty: none."
    )
    tuned: Section = Field(
        FrozenDict({}),
        description="Keys that a search chose (`fedshift tune`), each with its value; set by FedShift itself.",
    )

    @field_validator("experiment")
    @classmethod
    def _names_a_folder(cls, experiment: str) -> str:
        fits = experiment.isprintable() and len(experiment.encode()) <= MOST_BYTES
        if not FOLDER_NAME.fullmatch(experiment) or not fits:
            raise ValueError(
                f"{as_found(experiment)} cannot be part of a folder's name: at most 100 characters of "
                f"{MOST_BYTES} bytes, no / and \\, no dot first"
            )
        return experiment

    @field_validator("method", "adapt", "modules", "features")
    @classmethod
    def _has_a_name(cls, given: Any, info: ValidationInfo) -> Any:
        for entry in given if isinstance(given, tuple) else (given,):
            if not isinstance(entry.get("name", registry.NONE if info.field_name == "adapt" else None), str):
                raise ValueError(f"expected the key name with a word, found {as_found(entry.get('name'))}")
        return given

    def params(self) -> Params:
        """Return the method's parameters, checked.

        Raises:
            ValidationError: If one is unknown, of the wrong type or out of range.
        """
        given = {key: value for key, value in self.method.items() if key != "name"}
        return registry.get(self.method["name"]).checked_params(given)
