"""Which models are scored in which rounds. Pydantic only: the command line reads it without Flower."""

from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from fedshift_core.limits import MOST_ROUNDS
from fedshift_core.params import Rounds
from fedshift_core.wire.names import AVERAGED, BATCH, OWN, RETAKEN

#: With which statistics of BatchNorm the same weights are scored.
BnWay = Literal["averaged", "retaken", "own", "batch"]
BN_WAYS_TOLD = {
    AVERAGED: "as they were averaged",
    RETAKEN: "retaken from the nodes' training images",
    OWN: "of each node's own training images",
    BATCH: "of each batch of test images",
}
LAST_ROUNDS = 5  # the papers report the mean of the last five rounds


def last_rounds(number: int, kind: str = "") -> str:
    """Return ``last round``, ``last 2 rounds``, ...; ``kind`` stands before the noun."""
    return f"last {kind}round" if number == 1 else f"last {number} {kind}rounds"


class EvaluateConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """When the global model and the nodes' own models are scored; nothing of it changes the training.

    One score of the global model costs one pass over each of the D test sets. Scoring the client models
    of n nodes costs n x D passes, each node doing its own D at the end of local training, within
    ``federation.round_timeout``; a real node has test images of its own domain only, and does one.
    """

    every: Rounds = 1  # the global model: each so many rounds, and in each of the last ones
    #: How many of the last rounds are scored whatever ``every`` says, and on all test images whatever ``fraction``
    #: says. With fewer than five, and a large ``every``, a run's mean is over fewer rounds, which tables tell.
    last: int = Field(LAST_ROUNDS, ge=1, le=LAST_ROUNDS)
    #: Share of each test set that the global model is scored on before the last rounds, which are scored
    #: on all of it: a sample that is the same in all rounds, drawn from (seed, domain), whole batches of it.
    fraction: float = Field(1.0, gt=0, le=1)
    #: False: no test image is looked at, only the nodes' validation parts are scored (``fedshift tune``).
    test: bool = True
    #: Models right after local training (FedCode, section 7: LTA, ATA, GATA, GASA, CPRR): off; last: in the
    #: last rounds; every: in every round.
    client_models: Literal["off", "last", "every"] = "off"

    #: What nodes tell beside how many test images are right, in rounds that are scored on all of them: counts behind
    #: recall, precision, balanced accuracy, macro-F1, AUC and calibration error (docs/figures.md). No number of the
    #: training or of the accuracy depends on it.
    figures: bool = True
    #: Where each node has a model of its own, which nodes score a domain: own_domain: those that hold it; all_domains:
    #: all of them, in simulation, where each sees every test set. Accuracy is then the mean over nodes, and how far
    #: they are apart is told. n nodes make n passes over each test set.
    personal_on: Literal["own_domain", "all_domains"] = "own_domain"
    #: Nodes whose own parts of the model have not been in any local training yet (``federation.participation`` below 1,
    #: nodes that come late): leave_out: they score nothing, and a domain without a trained node has no accuracy; count:
    #: they score what their parts were before round 1, as other codes do.
    untrained: Literal["leave_out", "count"] = "leave_out"
    #: averaged: as the weights are, with the averages of the nodes' running statistics; retaken: with statistics of
    #: training images of all nodes, which take them with the averaged weights; own: each node with those of its own;
    #: batch: with those of each batch of ``images.eval_batch`` test images. The first is the run's accuracy, the
    #: others stand beside it. Each further one costs as much as scoring once more, retaken and own a pass over
    #: ``bn_images`` training images on each node besides. They change the score alone; FixBN (Zhong et al., arXiv
    #: 2303.06530) has statistics that stand still in training, which is not here.
    bn: tuple[BnWay, ...] = Field(("averaged",), min_length=1)
    bn_images: int = Field(1000, ge=2, le=1_000_000)  # the most training images of a node behind statistics

    #: Early stopping: the run ends after a scored round that comes so many rounds or more after the one with the best
    #: validation accuracy (``keep``); ``rounds`` is then the most. 0: off.
    patience: int = Field(0, ge=0, le=MOST_ROUNDS)

    @field_validator("patience", mode="before")
    @classmethod
    def _null_is_off(cls, value: Any) -> Any:
        return 0 if value is None else value

    @field_validator("bn")
    @classmethod
    def _different(cls, ways: tuple[BnWay, ...]) -> tuple[BnWay, ...]:
        if len(set(ways)) != len(ways):
            raise ValueError(f"expected different ways, found {', '.join(ways)}")
        return ways

    @field_validator("client_models", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads off as false

    def scores_global(self, server_round: int, rounds: int) -> bool:
        """Tell whether the global model is scored after this round (from 1) of ``rounds``."""
        return server_round % self.every == 0 or self._is_late(server_round, rounds)

    def share(self, server_round: int, rounds: int) -> float:
        """Return which share of each test set is scored after this round (from 1) of ``rounds``."""
        return 1.0 if self._is_late(server_round, rounds) else self.fraction

    def scores_clients(self, server_round: int, rounds: int) -> bool:
        """Tell whether nodes score their own models in this round (from 1) of ``rounds``."""
        return self.client_models == "every" or (self.client_models == "last" and self._is_late(server_round, rounds))

    def _is_late(self, server_round: int, rounds: int) -> bool:
        return server_round > rounds - self.last
