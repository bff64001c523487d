"""What a configuration says of averaging and of the server after it. Pydantic only: no Flower on the command line."""

from typing import Literal

from pydantic import Field

from fedshift_core.params import ConfigModel

#: Rules of weights that go by what each node says of its own images.
OF_IMAGES = ("ga", "afl")


class AggregationConfig(ConfigModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How updates become the next global weights.

    ``alpha``, ``beta`` and ``balance`` are those of ``domain-aware`` (F2DC, Eqs 10 and 11); values are the paper's.
    ``gap_step``, ``gap``, ``gap_on`` and ``gap_centred`` are those of ``ga`` (``fedshift_app.features.ga.server``);
    ``afl_step``, ``afl_update`` and ``afl_groups`` are those of ``afl`` (``fedshift_app.features.afl.server``);
    ``gma_tau`` is that of masks by agreement (``fedshift_app.features.gma.server``);
    ``clip_norm``, ``trim`` and ``malicious`` are those of ``robust`` (``fedshift_app.features.robust.server``).
    """

    weights: Literal["method", "samples", "equal", "domain-aware", "ga", "afl"] = Field(
        "method",
        description="Weights of the nodes: the method's own, by training images (samples), equal, domain-aware "
        "(F2DC), by generalisation gaps (ga, FedDG-GA), or of the domains with the largest loss (afl, GroupDRO).",
    )
    alpha: float = Field(
        1.0,
        ge=0,
        description="Weight of the share of images in domain-aware (F2DC, Eqs 10 and 11); useful from 0.8 to 1.2.",
    )
    beta: float = Field(
        0.4,
        ge=0,
        description="Weight of the discrepancy in domain-aware (F2DC, Eqs 10 and 11); useful from 0.3 to 0.5.",
    )
    balance: Literal["approximate", "exact"] = Field(
        "approximate",
        description="Class share in domain-aware: B_k^c = n_k / N as printed (approximate), or n_k^c / n^c (exact).",
    )
    gap_step: float = Field(
        0.2,
        ge=0,
        le=10,
        description="Step of a weight in the first round of ga, in multiples of the equal weight 1 / "
        "N; 0: weights stay.",
    )
    gap: Literal["loss", "accuracy"] = Field("loss", description="Quantity whose gap ga uses: loss or accuracy.")
    gap_on: Literal["train", "validation"] = Field(
        "train", description="Images of a node on which ga measures the gap."
    )
    gap_centred: bool = Field(
        True, description="Whether ga subtracts the mean from the gaps (paper); false: gaps as they are (code)."
    )
    afl_step: float = Field(
        0.1, ge=0, le=100, description="Step eta of afl: how far the weight of a group moves with its loss; 0: stays."
    )
    afl_update: Literal["exponential", "projected"] = Field(
        "exponential", description="Step of afl: exponential (GroupDRO), or projected on the simplex (AFL)."
    )
    afl_groups: Literal["domain", "node"] = Field("domain", description="Groups of afl: domains, or single nodes.")
    gma_tau: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Agreement of the nodes on the sign of a number's change from which it moves in full (tau of "
        "FedGMA); below, by that part of the average; 0: no masks.",
    )
    #: All but clip weigh each node alike.
    robust: Literal["none", "clip", "trimmed_mean", "median", "krum"] = Field(
        "none",
        description="Aggregation rule that one node cannot spoil, for methods that keep the default merge; none: the "
        "weighted average.",
    )
    clip_norm: float | None = Field(
        None, gt=0, description="Largest L2 norm of an update under robust=clip; null: the median of the round."
    )
    trim: float = Field(
        0.2, gt=0, lt=0.5, description="Share of the nodes that robust=trimmed_mean cuts off at each end (beta)."
    )
    malicious: int = Field(
        1,
        ge=1,
        description="Number of nodes in a round that may be malicious under robust=krum (f), which needs 2f + 3 nodes.",
    )

    @property
    def averages(self) -> str:
        """What needs averaged weights, with a verb; empty where the method decides."""
        if self.robust != "none":
            return f"aggregation.robust={self.robust} averages"
        if self.gma_tau > 0:
            return f"aggregation.gma_tau={self.gma_tau:g} averages"
        return "" if self.weights == "method" else f"aggregation.weights={self.weights} needs averaged"

    @property
    def one_domain(self) -> str:
        """What the weights make of a node that holds images of several domains; empty where they see no domain."""
        if self.weights == "domain-aware":
            return f"aggregation.weights={self.weights}: Q is the number of home domains; all images of a node count"
        if self.weights == "afl" and self.afl_groups == "domain":
            return f"aggregation.weights={self.weights}: a node's loss, over all its images, counts for its home domain"
        return ""

    def contradiction(self, *, lacking: str, noise: str) -> str:
        """Return why the section does not go with others; empty if it does.

        Args:
            lacking: What nodes lack for validation parts; empty where they have some.
            noise: The privacy mechanism, or ``none``.
        """
        if self.gma_tau > 0 and self.robust != "none":
            return (
                f"aggregation.gma_tau={self.gma_tau:g} and aggregation.robust={self.robust} exclude each other: each "
                "merges by a rule of its own; set gma_tau=0, or robust=none"
            )
        if self.weights not in OF_IMAGES:
            return ""
        if self.weights == "ga" and self.gap_on == "validation" and lacking:
            return (
                f"aggregation.gap_on=validation needs validation parts on the nodes: {lacking}; or set "
                "aggregation.gap_on=train"
            )
        if noise != "none":
            return (
                f"privacy.name={noise} does not go with aggregation.weights={self.weights}: nodes report how models do "
                "on their own images before the noise"
            )
        return ""

    @property
    def needs_rounds(self) -> bool:
        """Whether the weights go by the number of rounds of the run."""
        return self.weights == "ga"


class ServerConfig(ConfigModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What the server does with the average before it is the next global weights (``federation.server_optimizer``).

    ``momentum`` is that of ``fedavgm``, ``beta1`` that of ``fedadam`` and ``fedyogi``, as is ``beta2``; ``tau`` is that
    of all but ``fedavgm``. Values are those of Flower's strategies, but for ``momentum``, which is 0 there: FedAvg.
    """

    optimizer: Literal["none", "fedavgm", "fedadam", "fedyogi", "fedadagrad"] = Field(
        "none",
        description="Server optimizer by the rules of Flower's strategies, for methods that keep the default merge; "
        "none: the average is sent.",
    )
    lr: float | None = Field(
        None,
        gt=0,
        description="Learning rate of the server; null: 1 for fedavgm, 0.1 for fedadam and "
        "fedadagrad, 0.01 for fedyogi.",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of fedavgm; 0: none.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment of fedadam and fedyogi.")
    beta2: float = Field(0.99, ge=0, lt=1, description="Decay of the second moment of fedadam and fedyogi.")
    tau: float = Field(1e-3, gt=0, description="Constant added to the root of the second moment in all but fedavgm.")

    @property
    def rate(self) -> float:
        """The server's learning rate; 1 where there is no optimiser."""
        usual = {"none": 1.0, "fedavgm": 1.0, "fedadam": 0.1, "fedyogi": 0.01, "fedadagrad": 0.1}
        return usual[self.optimizer] if self.lr is None else self.lr

    @property
    def moments(self) -> int:
        """How many arrays as large as the weights the server keeps."""
        if self.optimizer == "fedavgm":
            return int(self.momentum > 0)
        return 0 if self.optimizer == "none" else 2
