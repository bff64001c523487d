"""What a configuration says of averaging and of the server after it. Pydantic only: no Flower on the command line."""

from typing import Literal

from pydantic import BaseModel, Field


class AggregationConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How updates become the next global weights.

    ``alpha``, ``beta`` and ``balance`` are those of ``domain-aware`` (F2DC, Eqs 10 and 11); values are the paper's.
    ``gap_step``, ``gap``, ``gap_on`` and ``gap_centred`` are those of ``ga`` (``strategies.ga``). ``clip_norm``,
    ``trim`` and ``malicious`` are those of ``robust`` (``strategies.federation.robust``).
    """

    #: method: as the method has it; samples: by training images (FedAvg); equal: each node alike; domain-aware: F2DC;
    #: ga: by how much worse than a node's own model the averaged one is on its images (FedDG-GA).
    weights: Literal["method", "samples", "equal", "domain-aware", "ga"] = "method"
    alpha: float = Field(1.0, ge=0)  # weight of the share of images; useful range 0.8 to 1.2
    beta: float = Field(0.4, ge=0)  # weight of the discrepancy; useful range 0.3 to 0.5
    balance: Literal["approximate", "exact"] = "approximate"  # B_k^c = n_k / N as printed, or n_k^c / n^c (A7)
    gap_step: float = Field(0.2, ge=0, le=10)  # how far a weight moves in the first round, in equal weights 1 / N
    gap: Literal["loss", "accuracy"] = "loss"  # what a gap is of
    gap_on: Literal["train", "validation"] = "train"  # on which of a node's images
    gap_centred: bool = True  # gaps less their mean (paper), or as they are (code)
    #: none: the weighted average; else a rule that one node cannot spoil, for the shared weights of any method that
    #: keeps the default merge. All but clip weigh each node alike.
    robust: Literal["none", "clip", "trimmed_mean", "median", "krum"] = "none"
    clip_norm: float | None = Field(None, gt=0)  # of clip: longest change of an update; null: the round's median
    trim: float = Field(0.2, gt=0, lt=0.5)  # of trimmed_mean: share of the nodes that is cut off at each end (beta)
    malicious: int = Field(1, ge=1)  # of krum: how many nodes of a round may lie (f); it needs 2f + 3 nodes

    @property
    def needs_rounds(self) -> bool:
        """Whether the weights go by the number of rounds of the run."""
        return self.weights == "ga"


class ServerConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What the server does with the average before it is the next global weights (``federation.server_optimizer``).

    ``momentum`` is that of ``fedavgm``, ``beta1`` that of ``fedadam`` and ``fedyogi``, as is ``beta2``; ``tau`` is that
    of all but ``fedavgm``. Values are those of Flower's strategies, but for ``momentum``, which is 0 there: FedAvg.
    """

    #: none: the average is sent; else a server optimiser, by the rules of Flower's strategies of these names, for any
    #: method that keeps the default merge.
    optimizer: Literal["none", "fedavgm", "fedadam", "fedyogi", "fedadagrad"] = "none"
    lr: float | None = Field(None, gt=0)  # null: Flower's: fedavgm 1, fedadam and fedadagrad 0.1, fedyogi 0.01
    momentum: float = Field(0.9, ge=0, lt=1)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    tau: float = Field(1e-3, gt=0)  # below it a second moment makes no difference

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
