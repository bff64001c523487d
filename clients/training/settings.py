"""What a node is told about models and training. Pydantic only: the command line reads it without torch."""

import math
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, field_validator, model_validator

from fedshift_core.limits import MOST_BATCH, MOST_CORES, MOST_ROUNDS, as_found
from fedshift_core.params import Arithmetic, BatchSize, Rounds

Precision = Literal["auto", "bf16", "float32"]
BatchNormMode = Literal["average", "local", "freeze", "group"]
Probability = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(ge=0)]
Turn = Annotated[float, Field(ge=0, le=0.5)]
Share = Annotated[float, Field(gt=0, le=1)]
Digest = Annotated[str, BeforeValidator(lambda text: "" if text is None else text), Field(pattern=r"^([0-9a-f]{64})?$")]
#: What does not train: stages are counted from the images.
Freeze = Annotated[str, Field(pattern=r"^(none|encoder|norm|stages:[1-9][0-9]?)$")]
MOST_STEPS = 100  # rounds after which a learning rate changes


def _in_order(scale: tuple[float, float]) -> tuple[float, float]:
    if scale[0] > scale[1]:
        raise ValueError(f"the first must not exceed the second, found {list(scale)}")
    return scale


Padding = Annotated[int, Field(ge=0, le=16)]
#: Area of the window of a random resized crop, from and to, as a share of the image.
Crop = Annotated[tuple[Share, Share], AfterValidator(_in_order)]
#: Brightness, contrast, saturation and hue.
Jitter = tuple[Strength, Strength, Strength, Turn]


class ModelConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Which network, what it begins with, what of it trains, and what happens to its BatchNorm."""

    name: str  # see `fedshift models`
    #: linear: one layer from features to logits; mlp: a hidden layer of the features' width with ReLU before it.
    head: Literal["linear", "mlp"] = "linear"
    #: A .safetensors, .pth or .pt file on the server's machine that the network begins with; empty: random values by
    #: the seed. Nodes never read it: the server sends what they need.
    weights: str = ""
    #: SHA-256 of what ``weights`` or ``download`` gave; filled in as the run is resolved or started, and held against
    #: it when the run is repeated or resumed.
    weights_sha256: Digest = ""
    #: Let the server's machine fetch the library's own pretrained weights (torchvision:, timm:).
    download: bool = False
    #: none; encoder; norm: its normalisation layers; stages:N: its first N stages. What is frozen, statistics of
    #: BatchNorm included, is sent to each node once.
    freeze: Freeze = "none"
    #: Networks dealt to the nodes in turn, by their place; not empty: nodes differ, and no weights travel.
    #: In a deployment a node may name its own (``--node-config 'model="cnn2"'``).
    per_node: tuple[str, ...] = ()
    #: average: parameters and running statistics travel and are averaged; local: they never leave the
    #: node (FedBN); freeze: statistics, scale and shift stay as they were initialised; group: GroupNorm in its place,
    #: which has no statistics (Hsieh et al., ICML 2020). Not here: FedWon (Zhuang, Lyu, ICLR 2024, arXiv 2306.05879),
    #: which takes all normalisation out and standardises the convolutions' weights; FixBN (Zhong et al., arXiv
    #: 2303.06530), which from some round on trains with averaged statistics that stand still.
    bn: BatchNormMode = "average"
    #: Groups of channels of each GroupNorm; 2 as in Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    groups: int = Field(2, ge=1, le=4096)
    #: The statistics of BatchNorm of the model that the run keeps: averaged as they are, or taken anew of the nodes'
    #: training images after each round that is scored (``evaluate.bn``). Training goes on with the averaged ones.
    bn_keep: Literal["averaged", "retaken"] = "averaged"


class TrainConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Local training on cross-entropy and the method's terms."""

    epochs: Rounds  # local epochs a round
    batch_size: BatchSize
    lr: float = Field(gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-5, ge=0)
    #: momentum is that of SGD; the other two have their usual betas, and adamw's decay is apart from the gradient.
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    clip: float | None = Field(None, gt=0)  # largest L2 norm of a step's gradient; null: not clipped
    lr_decay: float = Field(1.0, gt=0, le=1)  # the rate of round t is lr * lr_decay^(t - 1)
    #: linear, cosine: over the rounds of the run, from lr in the first (the last of the warm-up) to ``schedule_end``
    #: times lr in the last; step: lr times ``schedule_factor`` for each of ``schedule_steps`` that is over; none: the
    #: same in all. All are multiplied with ``lr_decay`` and the warm-up (:meth:`lr_factor`).
    schedule: Literal["none", "linear", "cosine", "step"] = "none"
    schedule_end: float = Field(0.1, ge=0, le=1)
    schedule_steps: tuple[Rounds, ...] = Field((), max_length=MOST_STEPS)  # rounds after which the rate changes
    schedule_factor: float = Field(0.1, gt=0, le=1)
    warmup_rounds: int = Field(0, ge=0, le=MOST_ROUNDS)  # the first rounds have 1/n, 2/n, ... n/n of the rate; 0: none
    precision: Precision = "auto"
    #: What ``auto`` stands for. Empty: what trains fastest on the nodes, measured before round 1 and kept in
    #: config.yaml (``arithmetic``), from which a resumed or repeated run has it. hardware: bf16 where a node's device
    #: computes in it, else float32, channels_last; what every run took before there was a choice.
    arithmetic: Literal[Arithmetic, "", "hardware"] = ""
    threads: int = Field(
        0, ge=0, le=MOST_CORES
    )  # CPU threads of a node; 0: in simulation one, or as many as cpus-per-client says

    @field_validator("schedule_steps")
    @classmethod
    def _rising(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        if list(steps) != sorted(set(steps)):
            raise ValueError(f"expected rounds that rise, such as [30, 60], found {as_found(list(steps))}")
        return steps

    @model_validator(mode="after")
    def _steps_and_schedule(self) -> Self:
        if (self.schedule == "step") != bool(self.schedule_steps):
            raise ValueError(
                f"schedule=step and schedule_steps=[30, 60] go together, found schedule={self.schedule} and "
                f"schedule_steps={as_found(list(self.schedule_steps))}"
            )
        return self

    @model_validator(mode="after")
    def _of_auto(self) -> Self:
        if self.arithmetic and self.precision != "auto":
            raise ValueError(
                f"arithmetic={self.arithmetic} is what precision=auto stands for, found precision={self.precision}"
            )
        return self

    @property
    def needs_rounds(self) -> bool:
        """Whether the rate of a round goes by the number of rounds of the run."""
        return self.schedule in ("linear", "cosine")

    def lr_factor(self, server_round: int, rounds: int) -> float:
        r"""Return what the learning rate is multiplied by in a round t (from 1) of T = ``rounds``.

        .. math:: \gamma^{t-1}\cdot\min(1,t/W)\cdot s(t)

        where gamma is ``lr_decay`` and W ``warmup_rounds`` (without warm-up the second factor is 1). With the progress
        :math:`p=(t-w)/(T-w)`, w = max(W, 1), held within 0 and 1, and e = ``schedule_end``, s(t) is

        * linear: :math:`e+(1-e)(1-p)`
        * cosine: :math:`e+(1-e)(1+\cos\pi p)/2`
        * step: :math:`f^k`, f = ``schedule_factor``, k the number of ``schedule_steps`` below t
        * none: 1
        """
        decayed = self.lr_decay ** (server_round - 1)
        if server_round < self.warmup_rounds:
            decayed *= server_round / self.warmup_rounds
        if self.schedule == "step":
            return decayed * self.schedule_factor ** sum(step < server_round for step in self.schedule_steps)
        first = max(self.warmup_rounds, 1)  # the round of the whole rate, from which a schedule goes
        if self.schedule == "none" or rounds <= first:
            return decayed
        done = min(max(server_round - first, 0), rounds - first) / (rounds - first)  # 0 in that round, 1 in the last
        left = 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
        return decayed * (self.schedule_end + (1 - self.schedule_end) * left)


class ImageConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """From uint8 images to what the network sees."""

    crop_padding: Padding = 0  # random crop after padding by so many pixels; 0: off
    flip: bool = False  # random horizontal flip
    resized_crop: Crop | None = None  # random resized crop; null: off
    #: Random brightness, contrast, saturation and hue as in torchvision's ColorJitter; 0: off.
    jitter: Jitter = (0.0, 0.0, 0.0, 0.0)
    jitter_p: Probability = 0.8  # probability that an image is jittered, as in SimCLR
    grayscale: Probability = 0.0  # probability that an image loses its colour
    views: Literal[1, 2] = 1  # augmented views of each training image; 2 for contrastive methods
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # ImageNet's, as the FPL code family uses
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    eval_batch: int = Field(
        64, ge=1, le=MOST_BATCH
    )  # images per batch in evaluation; larger ones fall out of a CPU's cache

    @property
    def draws_real_values(self) -> bool:
        """Whether an augmentation is on that changes values, not only places, of pixels."""
        return self.resized_crop is not None or any(self.jitter) or self.grayscale > 0

    @field_validator("std")
    @classmethod
    def _above_zero(cls, std: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(std) <= 0:
            raise ValueError(f"each must be above 0, found {list(std)}")
        return std
