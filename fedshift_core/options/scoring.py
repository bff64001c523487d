"""Which models are scored in which rounds. Pydantic only: the command line reads it without Flower."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedshift_core.limits import MOST_ROUNDS, MOST_SHOWN, some
from fedshift_core.params import OFF_IS_A_WORD, ConfigModel, Rounds
from fedshift_core.plural import plural
from fedshift_core.wire.names import AVERAGED, BATCH, OWN, RETAKEN

#: With which statistics of BatchNorm the same weights are scored.
BnStatistics = Literal["averaged", "retaken", "own", "batch"]
BN_STATISTICS_TEXT = {
    AVERAGED: "as they were averaged",
    RETAKEN: "re-estimated from the nodes' training images",
    OWN: "of each node's own training images",
    BATCH: "of each batch of test images",
}
LAST_ROUNDS = 5  # the papers report the mean of the last five rounds


#: What a run with ``rounds=0`` scores, which trains and chooses nothing.
INITIAL_MODEL = "initial model"


def round_name(number: int) -> str:
    """Return ``round 3``, or what a run with ``rounds=0`` scored."""
    return f"round {number}" if number else f"the {INITIAL_MODEL}"


def last_rounds(number: int, kind: str = "") -> str:
    """Return ``last round``, ``last 2 rounds``, ...; ``kind`` stands before the noun."""
    return f"last {kind}round" if number == 1 else f"last {number} {kind}rounds"


def apart(rounds: Sequence[int], last: int) -> bool:
    """Tell whether rounds, in their order, are other than the last ones of a run that ended after round ``last``."""
    return list(rounds) != list(range(last - len(rounds) + 1, last + 1))


def span(rounds: Sequence[int]) -> str:
    """Return ``60 to 100``; of two rounds ``5 and 10``."""
    return (" and " if len(rounds) == 2 else " to ").join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))


class EvaluateConfig(ConfigModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """When the global model and the nodes' own models are scored; nothing of it changes the training.

    One score of the global model costs one pass over each of the D test sets. Scoring the client models
    of n nodes costs n x D passes, each node doing its own D at the end of local training, within
    ``federation.round_timeout``; a real node has test images of its own domain only, and does one.
    """

    every: Rounds = Field(
        1, description="Interval in rounds at which the global model is scored; the last rounds are scored anyway."
    )
    #: With fewer than five and a larger ``every``, the mean is over fewer rounds, or over rounds far apart.
    last: int = Field(
        LAST_ROUNDS,
        ge=1,
        le=LAST_ROUNDS,
        description="Number of last rounds that are scored in any case, on all test images. The reported mean is "
        "over the last five rounds that were so scored, also by evaluate.every.",
    )
    #: The sample is drawn from (seed, domain), whole batches of it.
    fraction: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of each test set that is scored before the last rounds: the same sample in all rounds.",
    )
    test: bool = Field(
        True, description="Whether test images are scored; false: only the nodes' validation parts (`fedshift tune`)."
    )
    #: FedCode, section 7: LTA, ATA, GATA, GASA, CPRR.
    client_models: Annotated[Literal["off", "last", "every"], OFF_IS_A_WORD] = Field(
        "off", description="Rounds in which nodes score their models right after local training: off, last, or every."
    )

    #: docs/guide/figures.md; no number of the training or of the accuracy depends on it.
    figures: bool = Field(
        True,
        description="Whether nodes send counts for recall, precision, F1, AUC and calibration error in rounds that "
        "are scored in full.",
    )
    #: docs/guide/figures.md, too. A round that the run may keep or end with is known only when it is over.
    site_figures: bool = Field(
        True,
        description="Whether nodes work out metrics with 95 % intervals of their test images, in the last round; with "
        "keep=best-validation or evaluate.patience in every round that is scored in full.",
    )
    #: all_domains: accuracy is the mean over nodes, with their spread; n nodes make n passes over each test set.
    personal_on: Literal["own_domain", "all_domains"] = Field(
        "own_domain",
        description="Nodes that score a domain where each has its own model: those that hold it (own_domain), or all "
        "of them, in simulation (all_domains).",
    )
    #: leave_out: a domain without a trained node has no accuracy; count: as other codes do.
    untrained: Literal["leave_out", "count"] = Field(
        "leave_out",
        description="Nodes whose own parts have not been trained yet: leave_out does not score them, count scores the"
        " initial parts.",
    )
    #: Each further one costs as much as scoring once more; re-estimated and own ones also cost each node a pass over
    #: ``bn_images`` training images. They change the score alone. Statistics that stand still in training (FixBN, Zhong
    #: et al., arXiv 2303.06530) are not here.
    bn: tuple[BnStatistics, ...] = Field(
        ("averaged",),
        min_length=1,
        description="BatchNorm statistics of the scored models: averaged, re-estimated on all nodes (retaken), each "
        "node's own, or of each test batch; the first is the run's accuracy.",
    )
    bn_images: int = Field(
        1000,
        ge=2,
        le=1_000_000,
        description="Largest number of training images of a node behind re-estimated statistics.",
    )
    bn_order: Literal["shuffled", "listed"] = Field(
        "shuffled",
        description="Order of these images, of which each batch is normalised by itself: shuffled, or listed as the"
        " data set has them, which may be class by class.",
    )

    patience: int = Field(
        0,
        ge=0,
        le=MOST_ROUNDS,
        description="Rounds without a better validation accuracy after which the run stops early; 0 or null: off.",
    )

    @field_validator("patience", mode="before")
    @classmethod
    def _null_is_off(cls, value: Any) -> Any:
        return 0 if value is None else value

    @field_validator("bn")
    @classmethod
    def _different(cls, names: tuple[BnStatistics, ...]) -> tuple[BnStatistics, ...]:
        if len(set(names)) != len(names):
            raise ValueError(f"expected different statistics, found {', '.join(names)}")
        return names

    def scores_global(self, server_round: int, rounds: int) -> bool:
        """Tell whether the global model is scored after this round (from 1) of ``rounds``."""
        return server_round % self.every == 0 or self._is_late(server_round, rounds)

    def share(self, server_round: int, rounds: int) -> float:
        """Return which share of each test set is scored after this round (from 1) of ``rounds``."""
        return 1.0 if self._is_late(server_round, rounds) else self.fraction

    def scores_sites(self, server_round: int, rounds: int, *, any_may_count: bool) -> bool:
        """Tell whether nodes work out figures of their sites after this round (from 1) of ``rounds``.

        Args:
            server_round: The round.
            rounds: Rounds of the run.
            any_may_count: The run may keep any round (``keep=best-validation``).
        """
        counts = server_round == rounds or any_may_count or self.patience > 0
        return self.site_figures and self.test and counts and self.share(server_round, rounds) == 1

    def scores_clients(self, server_round: int, rounds: int) -> bool:
        """Tell whether nodes score their own models in this round (from 1) of ``rounds``."""
        return self.client_models == "every" or (self.client_models == "last" and self._is_late(server_round, rounds))

    def scorers(self, nodes: int) -> int:
        """Return of how many models a round has scores, in a run of so many nodes."""
        return 1 if self.client_models == "off" else nodes

    def contradiction(self) -> str:
        """Return why keys of this section do not go together; empty if they do."""
        if not self.test and self.client_models != "off":
            return (
                f"evaluate.test=false: evaluate.client_models={self.client_models} scores test images; allowed is off"
            )
        if self.patience and self.client_models == "last":
            return (
                f"evaluate.patience={self.patience} may end a run before its last {plural(self.last, 'round')}, which "
                "evaluate.client_models=last scores; allowed are off and every"
            )
        return ""

    def without_nodes(self, domains: Sequence[str]) -> str:
        """Return why accuracies of these domains, which no node holds, cannot be; empty if they can."""
        if self.bn[0] != OWN or not domains:
            return ""
        return (
            f"evaluate.bn=[{','.join(self.bn)}]: its first entry is own, but no node has training images of "
            f"{some(domains, MOST_SHOWN)}; put another first, or give these domains nodes"
        )

    def without_noise(self) -> str:
        """Return what a run with noise on what leaves a node needs of this section; empty for nothing."""
        if self.client_models != "off":
            return (
                f"needs evaluate.client_models=off, found {self.client_models}: it scores a node's model before the "
                "noise"
            )
        if RETAKEN in self.bn:
            return "needs evaluate.bn without retaken: BatchNorm statistics would leave a node without noise"
        return ""

    def _is_late(self, server_round: int, rounds: int) -> bool:
        return server_round > rounds - self.last
