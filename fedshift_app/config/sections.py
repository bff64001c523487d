"""The sections of a run's configuration with their keys, types and ranges."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    ValidationInfo,
    field_validator,
)

from fedshift_app.config import registry
from fedshift_app.config.dataset_section import FOLDER_NAME, DatasetConfig
from fedshift_app.config.trackers import Trackers, listed
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.features import with_rooms
from fedshift_core.frozen import FrozenDict, Section
from fedshift_core.limits import MOST_KEPT, MOST_NODES, MOST_ROUNDS, as_found
from fedshift_core.params import ConfigModel, For, Params, Rounds, RunRounds, Seconds, SectionOfRooms, Seed, Share
from fedshift_core.registry import Method, name_and_params
from fedshift_core.rounds import LAST_ROUNDS
from fedshift_core.spelling import meant
from fedshift_datasets.corruptions import CORRUPTIONS
from fedshift_datasets.partition.allocation import Allocation

KeptRounds = Annotated[
    tuple[int, ...],
    BeforeValidator(listed),
    Field(max_length=MOST_KEPT),
    AfterValidator(lambda rounds: tuple(sorted(set(rounds)))),
]


class ShiftConfig(ConfigModel):
    """How test images differ from training images (FedICON, section 5). Training images are never touched."""

    name: Literal["none", "corruption", "domain", "attribute"] = "none"
    """Shift of the test images: none, corruption of every domain, a held-out domain, or a later test set of the same
    classes (attribute).
    """
    corruption: Annotated[str, For("name", "corruption")] = "random"
    """One of the 15 corruptions of Hendrycks and Dietterich, or random: one drawn for each image."""
    severity: Annotated[int, For("name", "corruption")] = Field(5, ge=0, le=5)
    """Severity of the corruption; 0 leaves the images as they are."""
    label_mix: Literal["none", "own"] = "none"
    """Test set of a simulated node: none is its domain's as it is, own is drawn with the class proportions of its
    training images.
    """

    @field_validator("corruption")
    @classmethod
    def _known(cls, corruption: str) -> str:
        if corruption not in ("random", *CORRUPTIONS):
            raise ValueError(
                f"{as_found(corruption)} is unknown; there are random, {', '.join(CORRUPTIONS)}"
                f"{meant(corruption, ('random', *CORRUPTIONS))}"
            )
        return corruption


@with_rooms("federation")
class FederationConfig(SectionOfRooms):
    """Who takes part in a round, and how long the server waits."""

    participation: Share = 1.0
    """Share of the nodes that train in a round."""
    min_nodes: int = Field(2, ge=1, le=MOST_NODES)
    """Number of nodes that must be connected before each round of a deployment."""
    node_timeout: Seconds = 120.0
    """Seconds to wait for nodes to connect (at least 600 in simulation), and again for evaluation."""
    round_timeout: Seconds = 3600.0
    """Seconds that the training of a round may take."""
    #: Weights and features of these models stay below 1e3; 1e30 is finite, but dominates an average.
    max_value: PositiveFloat = 1e6
    """Largest absolute value in what a node sends; a node that exceeds it is left out of the round."""
    #: The norm of (received - sent) is divided by the norm of the sent weights and, from a tenth of the limit on, by
    #: the median of the round's nodes; a node with more images than most may go farther in proportion. The norm of
    #: prototypes and other arrays is divided by the nodes' median. Honest training stayed below 1, 2 and 8 where it
    #: went well, and reached 19 shortly before it diverged.
    max_update: PositiveFloat = 10.0
    """Largest relative change of the weights by a node, and largest ratio of its other arrays' norm to the nodes'
    median; a node that exceeds it is left out.
    """
    #: The server cannot verify a node's number of images; a log line names a node that is limited.
    max_images: float = Field(100.0, ge=1)
    """Upper limit of a node's weight, in multiples of the median number of training images."""
    log_received: bool = False
    """Whether the server writes down all that it receives from each node: name, type, shape, norm and SHA-256
    (`received.jsonl` in the run folder).
    """


@with_rooms("aggregation")
class AggregationConfig(SectionOfRooms):
    """How updates become the next global weights.

    ``alpha``, ``beta`` and ``balance`` are those of ``domain-aware`` (F2DC, Eqs 10 and 11); values are the paper's.
    """

    weights: Literal["method", "samples", "equal", "domain-aware", "ga", "afl"] = "method"
    """Weights of the nodes: the method's own, by training images (samples), equal, domain-aware (F2DC), by
    generalisation gaps (ga, FedDG-GA), or of the domains with the largest loss (afl, GroupDRO).
    """
    alpha: Annotated[NonNegativeFloat, For("weights", "domain-aware")] = 1.0
    """Weight of the share of images in domain-aware (F2DC, Eqs 10 and 11); useful from 0.8 to 1.2."""
    beta: Annotated[NonNegativeFloat, For("weights", "domain-aware")] = 0.4
    """Weight of the discrepancy in domain-aware (F2DC, Eqs 10 and 11); useful from 0.3 to 0.5."""
    balance: Annotated[Literal["approximate", "exact"], For("weights", "domain-aware")] = "approximate"
    """Class share in domain-aware: B_k^c = n_k / N as printed (approximate), or n_k^c / n^c (exact)."""


@with_rooms("server")
class ServerConfig(SectionOfRooms):
    """What the server does with the average before it is the next global weights."""


@with_rooms("privacy")
class PrivacyConfig(SectionOfRooms):
    """Noise on what leaves a node."""


@with_rooms("statistics")
class StatisticsConfig(SectionOfRooms):
    """What each node tells once, before it trains, of its training images."""


@with_rooms("evaluate")
class EvaluateConfig(SectionOfRooms):
    """When the global model and the nodes' own models are scored; nothing of it changes the training.

    One score of the global model costs one pass over each of the D test sets. Scoring the client models
    of n nodes costs n x D passes, each node doing its own D at the end of local training, within
    ``federation.round_timeout``; a real node has test images of its own domain only, and does one.
    """

    every: Rounds = 1
    """Interval in rounds at which the global model is scored; the last rounds are scored anyway."""
    #: With fewer than five and a larger ``every``, the mean is over fewer rounds, or over rounds far apart.
    last: int = Field(LAST_ROUNDS, ge=1, le=LAST_ROUNDS)
    """Number of last rounds that are scored in any case, on all test images. The reported mean is over the last five
    rounds that were so scored, also by evaluate.every.
    """
    #: The sample is drawn from (seed, domain), whole batches of it.
    fraction: Share = 1.0
    """Share of each test set that is scored before the last rounds: the same sample in all rounds."""
    test: bool = True
    """Whether test images are scored; false: only the nodes' validation parts (`fedshift tune`)."""
    #: all_domains: accuracy is the mean over nodes, with their spread; n nodes make n passes over each test set.
    personal_on: Literal["own_domain", "all_domains"] = "own_domain"
    """Nodes that score a domain where each has its own model: those that hold it (own_domain), or all of them, in
    simulation (all_domains).
    """
    #: leave_out: a domain without a trained node has no accuracy; count: as other codes do.
    untrained: Literal["leave_out", "count"] = "leave_out"
    """Nodes whose own parts have not been trained yet: leave_out does not score them, count scores the initial parts.

    """
    patience: int = Field(0, ge=0, le=MOST_ROUNDS)
    """Rounds without a better validation accuracy after which the run stops early; 0 or null: off."""

    @field_validator("patience", mode="before")
    @classmethod
    def _null_is_off(cls, value: Any) -> Any:
        return 0 if value is None else value

    def scores_global(self, server_round: int, rounds: int) -> bool:
        """Tell whether the global model is scored after this round (from 1) of ``rounds``."""
        return server_round % self.every == 0 or self.is_late(server_round, rounds)

    def share(self, server_round: int, rounds: int) -> float:
        """Return which share of each test set is scored after this round (from 1) of ``rounds``."""
        return 1.0 if self.is_late(server_round, rounds) else self.fraction

    def is_late(self, server_round: int, rounds: int) -> bool:
        """Tell whether a round (from 1) is one of the last, which are scored in any case."""
        return server_round > rounds - self.last


@with_rooms("")
class RunConfig(SectionOfRooms):
    """All settings that decide the numbers of a run, and whether its time is measured."""

    experiment: str
    """Name of the experiment, which is part of the run folder's name."""
    dataset: DatasetConfig
    """Which images."""
    images: ImageConfig = ImageConfig()
    """From images to what the network sees."""
    allocation: Allocation = Allocation()
    """How nodes and images are divided in simulation."""
    model: ModelConfig
    """Which network."""
    train: TrainConfig
    """Local training."""
    method: Section
    """Name of the method (`fedshift methods`) and its parameters."""
    modules: tuple[Section, ...] = ()
    """Modules added to the network (`fedshift modules`), each with its name and parameters; empty: none."""
    adapt: Section = FrozenDict({"name": registry.NONE})
    """Adaptation before a test (`fedshift adaptations`), with its name and parameters; name none: no adaptation."""
    features: tuple[Section, ...] = ()
    """Features of other packages (docs/guide/own-method.md), each with its name and parameters; empty: none."""
    aggregation: AggregationConfig = AggregationConfig()
    """How updates become the next global weights."""
    server: ServerConfig = ServerConfig()
    """Server optimizer."""
    plugins: tuple[str, ...] = ()
    """Paths of a user's own Python files, in simulation only."""
    federation: FederationConfig = FederationConfig()
    """Who takes part in a round, and how long the server waits."""
    statistics: StatisticsConfig = StatisticsConfig()
    """What each node tells once, before it trains, of its training images."""
    privacy: PrivacyConfig = PrivacyConfig()
    """Noise on what leaves a node."""
    shift: ShiftConfig = ShiftConfig()
    """How test images differ from training images."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Which models are scored in which rounds."""
    keep: Literal["last", "best-validation"] = "last"
    """Model that a run keeps: of the last round, or of the round with the best validation accuracy, of equal ones the
    one with the lowest validation loss.
    """
    keep_rounds: KeptRounds = ()
    """Rounds whose checkpoints stay in addition, for figures over the rounds; empty: none."""
    #: Where nodes keep private parts, or a round is kept by validation, each round has one all the same.
    checkpoint_seconds: float = Field(0.0, ge=0, le=86_400)
    """Least number of seconds from one checkpoint to the next; the first and the last round always have one, 0: each
    round.
    """
    rounds: RunRounds
    """Number of rounds; with `evaluate.patience` the largest number; 0 trains nothing and scores the initial weights.

    """
    seed: Seed = 0
    """Seed of the run: of initial weights, allocation, sampling and augmentation."""
    tracking: Trackers = ()
    """Trackers that show the rounds in addition to metrics.jsonl; empty: none."""
    tuned: Section = FrozenDict({})
    """Keys that a search chose (`fedshift tune`), each with its value; set by FedShift itself."""

    @field_validator("experiment")
    @classmethod
    def _names_a_folder(cls, experiment: str) -> str:
        if not FOLDER_NAME.fullmatch(experiment) or not experiment.isprintable():
            raise ValueError(
                f"{as_found(experiment)} cannot be part of a folder's name: at most 100 characters, no / and \\, no "
                "dot first"
            )
        return experiment

    @field_validator("method", "adapt")
    @classmethod
    def _has_a_name(cls, given: FrozenDict[str, Any], info: ValidationInfo) -> FrozenDict[str, Any]:
        if not isinstance(given.get("name", registry.NONE if info.field_name == "adapt" else None), str):
            raise ValueError(f"expected the key name with a word, found {as_found(given.get('name'))}")
        return given

    def with_values(self, section: str, **values: Any) -> Self:
        """Return the configuration with other values in a section, which are not checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    @property
    def declared(self) -> Method:
        """The method as it is declared; a recipe has the classes of its base method."""
        return registry.get(self.method["name"])

    def params(self) -> Params:
        """Return the method's parameters, checked.

        Raises:
            ValidationError: If one is unknown, of the wrong type or out of range.
        """
        return self.declared.checked_params(name_and_params(self.method)[1])


#: The sections of keys by name; all other fields hold one value, or names with parameters.
MODELS: Mapping[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
