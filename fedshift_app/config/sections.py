"""The sections of a run's configuration and what each may hold."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo, field_validator

from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from datasets import catalog
from datasets.base import TEST_SHARE, Dataset, Exif, Form, Names, Resize, Source
from datasets.corruptions import CORRUPTIONS
from datasets.partition.splits import Allocation
from fedshift_app.config import registry
from fedshift_app.config.privacy import PrivacyConfig
from fedshift_app.config.trackers import Trackers
from fedshift_core.frozen import FrozenDict, Section
from fedshift_core.limits import MOST_KEPT, MOST_NODES, as_found
from fedshift_core.params import Params, Rounds, Seconds, Seed
from fedshift_core.spelling import meant
from strategies.federation.schedule import EvaluateConfig
from strategies.settings import AggregationConfig, ServerConfig

#: What a name from a configuration must be so that a file of that name stays in its folder.
FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,99}")
MOST_BYTES = 150  # of such a name: method, seed and time stand beside it in a folder's name, which has 255

WindowEnd = Annotated[float, Field(ge=-1e9, le=1e9)]


def _listed(told: Any) -> Any:
    """Return the rounds in what a configuration says: a list, one number, or numbers with commas."""
    if told is None:
        return ()
    if isinstance(told, str):
        return tuple(part.strip() for part in told.strip("[] ").split(",") if part.strip())
    return (told,) if isinstance(told, int) and not isinstance(told, bool) else told


def _in_order(rounds: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(rounds)))


KeptRounds = Annotated[
    tuple[int, ...], BeforeValidator(_listed), Field(max_length=MOST_KEPT), AfterValidator(_in_order)
]


def _as_names(told: Any) -> Any:
    """Return class names as text where a configuration has whole numbers, as YAML reads ``[0, 1]``."""
    if not isinstance(told, list | tuple):
        return told
    return [str(name) if type(name) is int else name for name in told]


ClassNames = Annotated[tuple[str, ...], BeforeValidator(_as_names)]


class DatasetConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Which images."""

    name: str
    of: str = ""  # the data set that reads the images, where ``name`` is a user's own word for them: folders
    domains: tuple[str, ...]  # the domains of this run, in the order of tables
    classes: ClassNames = ()  # of folders, in the order of labels; other data sets have their own
    data_dir: str = ""  # where the images are; empty: the data set makes its own
    classes_stated: bool = True  # false: nobody did, ``classes`` are folders' names by alphabet; set by FedShift itself
    labels: str = ""  # of folders: the table in data_dir that names images; empty: labels.csv, where there is one
    download: bool = False  # let torchvision fetch what it can
    seed: Seed = 0  # of generated images, and of the split of folders
    size: int | None = Field(None, ge=16, le=1024)  # height and width in pixels; null: the data set's own
    #: How an image that is no square becomes one. squash: both sides to the size; crop: the shorter side, and the
    #: middle of the longer one; pad: the longer side, on black.
    resize: Resize = "squash"
    #: Of files with more than 8 bits a channel, the values that become black and white, in DICOM those of the modality
    #: (Hounsfield); null: the full range, of DICOM the file's own window.
    window: tuple[WindowEnd, WindowEnd] | None = None
    #: What a file says of its orientation, as cameras do: ignore: pixels stay as they are stored; apply: turn or mirror
    #: the image so.
    exif: Exif = "ignore"
    #: Of folders: the part of each class that is test, where images do not say themselves; null: 0.2.
    test_share: float | None = Field(None, gt=0, lt=1)
    skip_broken: bool = False  # go on without images that cannot be read, and name them
    #: Labelled images that all nodes have and nobody trains, validates or is tested on as its own: a domain of the data
    #: set that is not among ``domains``, or a share of the images that nodes divide of each domain they hold. A real
    #: node brings its copy.
    public: str | float | None = None

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
        # A server says it to nodes: it must not be a way to other files.
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
            there, self.download, self.seed, self.classes, self.labels, share, self.skip_broken, self.classes_stated
        )

    def known(self) -> Dataset:
        """Return the data set as this run has it.

        Raises:
            ConfigError: If there is none of that name, or its package cannot be used.
        """
        return catalog.stated(self.kind, Names(self.domains, self.classes), self.name)


class ShiftConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How test images differ from training images (FedICON, section 5). Training images are never touched."""

    #: none; corruption: the test images of every domain are corrupted; domain: a held-out domain is the
    #: test; attribute: a later test set of the same classes (cifar10.1) is the test.
    name: Literal["none", "corruption", "domain", "attribute"] = "none"
    corruption: str = "random"  # one of the 15 of Hendrycks & Dietterich, or one drawn for each image
    severity: int = Field(5, ge=0, le=5)  # 0 leaves the images as they are
    #: own: each simulated node is scored on a test set of its own, drawn from the domain's with the proportions of
    #: its training labels; none: on the domain's test set as it is.
    label_mix: Literal["none", "own"] = "none"

    @field_validator("corruption")
    @classmethod
    def _known(cls, corruption: str) -> str:
        if corruption not in ("random", *CORRUPTIONS):
            raise ValueError(
                f"{as_found(corruption)} is unknown; there are random, {', '.join(CORRUPTIONS)}"
                f"{meant(corruption, ('random', *CORRUPTIONS))}"
            )
        return corruption


class FederationConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Who takes part in a round, and how long the server waits."""

    participation: float = Field(1.0, gt=0, le=1)  # share of the nodes that train in a round
    min_nodes: int = Field(2, ge=1, le=MOST_NODES)  # nodes that must be there before each round (deployment)
    node_timeout: Seconds = 120.0  # seconds to wait for nodes (simulated ones: 600 at least), and for evaluation again
    round_timeout: Seconds = 3600.0  # seconds a round's training may take
    #: Largest absolute value of a weight, a prototype, ... that a node may send; a node that sends more is left out.
    #: Weights and features of these models stay below 1e3; 1e30 is finite, but drowns all others in an average.
    max_value: float = Field(1e6, gt=0)
    #: The most that a node may change the weights: the norm of (received - sent) over that of what was sent, and, from
    #: a tenth of that on, over the median of the round's nodes, where a node with more images than most may go farther
    #: by as much. And the largest norm of its prototypes, ...: over the median of the nodes. A node with more is left
    #: out. Honest training was below 1, 2 and 8 where it went well, and at 19 shortly before it diverged.
    max_update: float = Field(10.0, gt=0)
    #: How many times the median of the nodes' training images a node weighs by at most. One that announces more weighs
    #: as if it had so many, and a line says so: nobody can verify what it announces.
    max_images: float = Field(100.0, ge=1)


class RunConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Everything that decides the numbers of a run, and whether its time is measured."""

    experiment: str  # part of the run folder's name
    dataset: DatasetConfig
    images: ImageConfig = ImageConfig()
    allocation: Allocation = Allocation()
    model: ModelConfig
    train: TrainConfig
    method: Section  # ``name`` and the method's parameters
    modules: tuple[Section, ...] = ()  # of each entry ``name`` and the parameters
    adapt: Section = FrozenDict({"name": registry.NONE})  # ``name`` and the parameters
    aggregation: AggregationConfig = AggregationConfig()
    server: ServerConfig = ServerConfig()
    plugins: tuple[str, ...] = ()  # a user's own Python files, in simulation only
    federation: FederationConfig = FederationConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    shift: ShiftConfig = ShiftConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    #: Which round's model the run is for, and keeps beside those it can go on from: the last, or that with the best
    #: validation accuracy (``fedshift_app.run.model_selection``).
    keep: Literal["last", "best-validation"] = "last"
    keep_rounds: KeptRounds = ()  # rounds whose checkpoint stays besides, for figures over the rounds
    rounds: Rounds  # with ``evaluate.patience`` the most
    seed: Seed = 0
    profile: bool = False  # tell where the time of each round went
    tracking: Trackers = ()  # show the rounds elsewhere as well, beside metrics.jsonl
    #: Of a run whose values a search chose (``fedshift tune``): their dotted keys, each with the value that it had.
    tuned: Section = FrozenDict({})

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

    @field_validator("method", "adapt", "modules")
    @classmethod
    def _has_a_name(cls, given: Any, info: ValidationInfo) -> Any:
        for entry in given if isinstance(given, tuple) else (given,):
            if not isinstance(entry.get("name", registry.NONE if info.field_name == "adapt" else None), str):
                raise ValueError(f"expected the key name with a word, found {as_found(entry.get('name'))}")
        return given

    def params(self) -> tuple[Params, Params]:
        """Return the method's parameters, checked: for the strategy, for the client.

        Raises:
            ValidationError: If one is unknown, of the wrong type or out of range.
        """
        given = {key: value for key, value in self.method.items() if key != "name"}
        return registry.get(self.method["name"]).split_params(given)

    def server_params(self) -> Params:
        """Return the method's parameters for the strategy."""
        return self.params()[0]

    def node_params(self) -> Params:
        """Return the method's parameters for the client."""
        return self.params()[1]
