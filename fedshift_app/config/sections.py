"""The sections of a run's configuration, what each may hold, and which go together."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from clients.models.catalog import NETWORKS
from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from datasets import catalog, folders
from datasets.base import TEST_SHARE, Dataset, Form, Names, Resize, Source
from datasets.corruptions import CORRUPTIONS, LARGEST_SIDE, SMALLEST_SIDE
from datasets.splits import Allocation
from fedshift_app.config import networks, registry
from fedshift_app.config.places import at
from fedshift_app.config.privacy import PrivacyConfig
from fedshift_app.run.tracking import Trackers
from fedshift_wire.bounds import MOST_NODES, as_found, shortened
from fedshift_wire.errors import ConfigError
from fedshift_wire.frozen import FrozenDict, Section
from fedshift_wire.names import AVERAGED, OWN
from fedshift_wire.params import Params, Rounds, Seconds, Seed
from fedshift_wire.paths import check_path
from fedshift_wire.spelling import meant
from strategies.federation.schedule import EvaluateConfig
from strategies.settings import AggregationConfig, ServerConfig

#: What a name from a configuration must be so that a file of that name stays in its folder.
FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,99}")
MOST_BYTES = 150  # of such a name: method, seed and time stand beside it in a folder's name, which has 255

_QUOTED = re.compile(r"'([^']*)'")

WindowEnd = Annotated[float, Field(ge=-1e9, le=1e9)]


class DatasetConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Which images."""

    name: str
    of: str = ""  # the data set that reads the images, where ``name`` is a user's own word for them: folders
    domains: tuple[str, ...]  # the domains of this run, in the order of tables
    classes: tuple[str, ...] = ()  # of folders, in the order of labels; other data sets have their own
    data_dir: str = ""  # where the images are; empty: the data set makes its own
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
        return Form(self.resize, self.window)

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
        return Source(there, self.download, self.seed, self.classes, self.labels, share, self.skip_broken)

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
    #: The most that a node may change the weights: the norm of (received - sent) over that of what was sent. And the
    #: largest norm of its prototypes, ...: over the median of the round's nodes. A node with more is left out. Honest
    #: training was below 1 and 8 where it went well, and at 19 shortly before it diverged.
    max_update: float = Field(200.0, gt=0)


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
    #: validation accuracy (``fedshift_app.run.choosing``).
    keep: Literal["last", "best-validation"] = "last"
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


def check_dataset(config: DatasetConfig) -> None:
    """Refuse a path that depends on where the process started, and domains that the data set lacks or that come twice.

    Raises:
        ConfigError: With the key.
    """
    if config.data_dir and not Path(config.data_dir).is_absolute():
        raise ConfigError(
            f"dataset.data_dir: {as_found(config.data_dir)} is not an absolute path; "
            "the key data-dir= takes a relative one"
        )
    check_path(config.data_dir, "dataset.data_dir")
    dataset = config.known()
    if dataset.own is not None:
        check_own(config)
    else:
        _check_not_own(config)
    known = dataset.domains
    for domain in config.domains:
        if domain not in known:
            raise ConfigError(
                f"dataset.domains: {config.name} has no domain {as_found(domain)}; it has {', '.join(known)}"
                f"{meant(domain, known)}",
                keys=(("dataset", "domains", domain),),
            )
    if len(set(config.domains)) != len(config.domains) or not config.domains:
        raise ConfigError(
            f"dataset.domains: expected different domains, found {shortened(', '.join(config.domains)) or 'none'}"
        )
    if config.public is not None:
        _check_public(config, dataset)


def _check_public(config: DatasetConfig, dataset: Dataset) -> None:
    """Refuse a public domain that there is not, or that nodes hold or are tested on.

    Raises:
        ConfigError: With what is allowed.
    """
    if catalog.PUBLIC in config.domains:
        raise ConfigError(
            f"dataset.public: a domain of the run is called {catalog.PUBLIC!r}, which is what a node's copy of the "
            "public set is called; rename the domain"
        )
    domain = config.public_domain
    if not domain:
        return
    if domain in config.domains:
        others = ",".join(other for other in config.domains if other != domain)
        raise ConfigError(
            f"dataset.public={shortened(domain)}: nodes hold this domain, or are tested on it; take it out with "
            f"dataset.domains=[{shortened(others)}], or make a share public, such as dataset.public=0.1"
        )
    if dataset.own is not None:
        try:
            folders.check_domain(domain)
        except ValueError as problem:
            raise ConfigError(f"dataset.public: {problem}") from None
    elif domain not in dataset.domains:
        raise ConfigError(
            f"dataset.public: {config.name} has no domain {as_found(domain)}; it has {', '.join(dataset.domains)}"
            f"{meant(domain, dataset.domains)}",
            keys=(("dataset", "public"),),
        )


def check_own(config: DatasetConfig) -> None:
    """Refuse names of a user's own that could not be those of domains, classes and a data set.

    Raises:
        ConfigError: With the key.
    """
    if config.of and config.name in catalog.DATASETS:
        raise ConfigError(f"dataset.of: {config.name} is a data set itself; dataset.name must be a name of your own")
    if len(config.classes) < 2 or len({kind.casefold() for kind in config.classes}) != len(config.classes):
        found = shortened(", ".join(config.classes)) or "none"
        raise ConfigError(f"dataset.classes: expected at least two different classes, found {found}")
    if len(config.classes) > folders.MOST_CLASSES or len(config.domains) > folders.MOST_DOMAINS:
        raise ConfigError(
            f"dataset: {len(config.domains)} domains with {len(config.classes)} classes; allowed are "
            f"{folders.MOST_DOMAINS} and {folders.MOST_CLASSES} at most"
        )
    for key, names, check in (
        ("name", (config.name,), folders.check_domain),
        ("domains", config.domains, folders.check_domain),
        ("classes", config.classes, folders.check_class),
    ):
        for name in names:
            try:
                check(name)
            except ValueError as problem:
                raise ConfigError(f"dataset.{key}: {problem}") from None


def _check_not_own(config: DatasetConfig) -> None:
    """Refuse what is said of a user's own images where the data set has names and splits of its own."""
    if config.of:
        raise ConfigError(f"dataset.of: {config.of} has names of its own; allowed is {', '.join(catalog.of_users())}")
    for key in ("classes", "labels", "test_share"):
        if getattr(config, key):
            raise ConfigError(
                f"dataset.{key}: {config.name} has its own; it belongs to {', '.join(catalog.of_users())}"
            )


def check_together(config: RunConfig) -> None:
    """Refuse combinations of sections that make no sense.

    Raises:
        ConfigError: With the keys.
    """
    dataset = config.dataset.known()
    size = config.dataset.size or dataset.size
    asked = [("model.name", config.model.name), *(("model.per_node", name) for name in config.model.per_node)]
    for key, name in asked:
        with at("model", key.removeprefix("model.")):
            only = NETWORKS.named(name, key).size
        if only is not None and size != only:
            any_size = ", ".join(network.name for network in NETWORKS.values() if network.size is None)
            raise ConfigError(f"model.name={name} needs dataset.size={only}, found {size}; {any_size} take any size")
    _check_batchnorm(config, [name for _, name in asked])
    networks.check_model(config.model)
    _check_choosing(config)
    _check_gaps(config)
    if config.train.warmup_rounds > 0 and config.train.warmup_rounds >= config.rounds:
        raise ConfigError(
            f"train.warmup_rounds={config.train.warmup_rounds}: the warm-up must end before the last round, there are "
            f"rounds={config.rounds}"
        )
    for domain in config.allocation.training_domains(config.dataset.domains):
        if domain in dataset.test_only:
            raise ConfigError(f"{domain!r} is a test set only: put it under allocation.held_out, or leave it out")
    if config.shift.name in ("domain", "attribute") and not config.allocation.held_out:
        raise ConfigError(f"shift.name={config.shift.name} needs allocation.held_out: the domains to test on")
    if config.shift.name == "corruption" and config.allocation.test_fraction > 0:
        raise ConfigError("shift.name=corruption needs allocation.test_fraction=0: it corrupts test splits")
    if config.shift.name == "corruption" and not SMALLEST_SIDE <= size <= LARGEST_SIDE:
        raise ConfigError(
            f"shift.name=corruption needs images of {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, found {size}: its "
            "constants are made for these sizes; take another dataset.size"
        )
    if config.shift.label_mix == "own" and config.allocation.test_fraction > 0:
        raise ConfigError(
            "shift.label_mix=own needs allocation.test_fraction=0, found "
            f"{config.allocation.test_fraction:g}: a test set cut from a node's images follows its labels already"
        )
    if config.allocation.test_on == "domain":
        _check_whole_domains(config)
    _check_public_share(config)
    if config.shift.label_mix == "own" and config.evaluate.personal_on == "all_domains":
        raise ConfigError(
            "evaluate.personal_on=all_domains scores every node on the same test sets; shift.label_mix=own draws each "
            "node its own"
        )
    if config.shift.name == "attribute" and config.dataset.name != "cifar10":
        raise ConfigError(f"shift.name=attribute needs dataset cifar10, found {config.dataset.name}")


def _check_public_share(config: RunConfig) -> None:
    """Refuse a share for a public set of which no image is left that is no test image."""
    if config.dataset.public_share and config.allocation.test_on == "domain":
        raise ConfigError(
            f"dataset.public={config.dataset.public_share:g} needs allocation.test_on=split, found domain: there all "
            "images of a domain are its test; allowed is a domain of the data set that is not among dataset.domains"
        )


def _check_choosing(config: RunConfig) -> None:
    """Refuse to choose a round, or to stop, by validation that does not take place.

    Raises:
        ConfigError: With the keys.
    """
    patience = config.evaluate.patience
    if not config.evaluate.test:
        _check_without_test(config)
    if config.keep == "last" and not patience:
        return
    told = f"evaluate.patience={patience}" if config.keep == "last" else f"keep={config.keep}"
    if not config.allocation.validation_fraction:
        raise ConfigError(
            f"{told} needs validation parts on the nodes: allocation.validation_fraction above 0, found 0"
        )
    if config.evaluate.fraction < 1:
        raise ConfigError(
            f"{told} needs evaluate.fraction=1, found {config.evaluate.fraction:g}: any round may be the one to count"
        )
    if patience and config.evaluate.client_models == "last":
        raise ConfigError(
            f"evaluate.patience={patience} may end a run before its last five rounds, which "
            "evaluate.client_models=last scores; allowed are off and every"
        )


def _check_without_test(config: RunConfig) -> None:
    """Refuse to score nothing at all, and the nodes' own models on test images that are not to be looked at.

    Raises:
        ConfigError: With the keys.
    """
    if not config.allocation.validation_fraction:
        raise ConfigError(
            "evaluate.test=false scores validation parts alone: it needs allocation.validation_fraction above 0, "
            "found 0"
        )
    if config.evaluate.client_models != "off":
        raise ConfigError(
            f"evaluate.test=false: evaluate.client_models={config.evaluate.client_models} scores test images; allowed "
            "is off"
        )


def _check_gaps(config: RunConfig) -> None:
    """Refuse generalisation gaps on images that nobody has, or beside the noise.

    Raises:
        ConfigError: With the keys.
    """
    rule = config.aggregation
    if rule.weights != "ga":
        return
    if rule.gap_on == "validation" and not config.allocation.validation_fraction:
        raise ConfigError(
            "aggregation.gap_on=validation needs validation parts on the nodes: allocation.validation_fraction above "
            "0, found 0; or take aggregation.gap_on=train"
        )
    if config.privacy.name != "none":
        raise ConfigError(
            f"privacy.name={config.privacy.name} does not go with aggregation.weights=ga: nodes tell how their own "
            "models do before the noise"
        )


def _check_batchnorm(config: RunConfig, networks: list[str]) -> None:
    """Refuse statistics of BatchNorm where there are none, and a model that is kept but not scored.

    Raises:
        ConfigError: With the keys.
    """
    ways, keep = config.evaluate.bn, config.model.bn_keep
    if keep != AVERAGED and keep not in ways:
        raise ConfigError(
            f"model.bn_keep={keep}: the model that a run keeps is to be scored, add {keep} to evaluate.bn"
        )
    if ways == (AVERAGED,):
        return
    told = f"evaluate.bn=[{','.join(ways)}]"
    if config.model.bn in ("freeze", "group"):
        raise ConfigError(f"{told} scores other statistics of BatchNorm, model.bn={config.model.bn} has none to take")
    for name in networks:
        if not NETWORKS[name].batchnorm:
            raise ConfigError(f"{told}: the network {name} has no BatchNorm; allowed is [{AVERAGED}]")
    if ways[0] == OWN and config.allocation.held_out:
        raise ConfigError(f"{told}: its first is own, but nobody has training images of a held-out domain")


def _check_whole_domains(config: RunConfig) -> None:
    """Refuse what goes by test splits where whole domains are the test."""
    if config.shift.name == "corruption" or config.shift.label_mix == "own":
        found = "name=corruption" if config.shift.name == "corruption" else "label_mix=own"
        raise ConfigError(f"shift.{found} needs allocation.test_on=split, found domain: it alters test splits")
    for domain in config.dataset.domains:
        if domain in config.dataset.known().test_only:
            raise ConfigError(f"allocation.test_on=domain: {domain!r} is a test set only; allowed is split")


def explained(error: ValidationError, *section: str) -> ConfigError:
    """Return what says in a line or two which key is wrong, what was found and what is allowed."""
    # First what is unknown: a word that is not quite that of a key is why the key is missing.
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    lines = [_problem(p, (*section, *p["loc"])) for p in problems[:2]]
    more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
    return ConfigError("\n".join(lines) + more, keys=tuple((*section, *p["loc"]) for p in problems[:2]))


def _problem(problem: Any, loc: tuple[int | str, ...]) -> str:
    key = shortened(".".join(str(part) for part in loc)) or "configuration"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        beside = _fields_beside(loc)
        return f"unknown key {key}; there are {', '.join(beside)}{meant(loc[-1], beside)}"
    if problem["type"] == "missing":
        return f"{key} is missing"
    if problem["type"] == "value_error":
        return f"{key}: {message}"
    # pydantic tells the words of a Literal as it writes them: 'a', 'b' or 'c'.
    words = _QUOTED.findall(problem["ctx"]["expected"]) if problem["type"] == "literal_error" else ()
    return f"{key}: {message}, found {as_found(problem['input'])}{meant(problem['input'], words)}"


def _fields_beside(loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are allowed where ``loc`` points."""
    model: type[BaseModel] = RunConfig
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return list(model.model_fields)
