"""Settings of a node for models and training. Pydantic only: the command line reads it without torch."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PlainValidator,
    field_validator,
    model_validator,
)

from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import MOST_BATCH, MOST_CORES, MOST_ROUNDS, as_found
from fedshift_core.params import Arithmetic, BatchSize, ConfigModel, For, Fraction, Probability, Rounds, Share

Precision = Literal["auto", "bf16", "float32"]
BatchNormMode = Literal["average", "local", "freeze", "group"]
Strength = Annotated[float, Field(ge=0)]
Turn = Annotated[float, Field(ge=0, le=0.5)]
#: A key that is set to nothing, ``model.weights=``, is empty.
MayBeEmpty = Annotated[str, BeforeValidator(lambda text: "" if text is None else text)]
Digest = Annotated[MayBeEmpty, Field(pattern=r"^([0-9a-f]{64})?$")]
#: What does not train: stages are counted from the images.
Freeze = Annotated[str, Field(pattern=r"^(none|encoder|norm|stages:[1-9][0-9]?)$")]
#: Keys of the section ``images`` that augment a training image; ``jitter_p`` belongs to ``jitter``.
AUGMENTATION = ("crop_padding", "flip", "resized_crop", "jitter", "grayscale")
MOST_STEPS = 100  # rounds after which a learning rate changes
#: Rules of ``train.class_weights`` that go by numbers of images.
BALANCED, EFFECTIVE = "balanced", "effective"
MOST_WEIGHT = 10_000.0  # of a class


def _in_order(scale: tuple[float, float]) -> tuple[float, float]:
    if scale[0] > scale[1]:
        raise ValueError(f"the first must not exceed the second, found {list(scale)}")
    return scale


def _class_weights(given: Any) -> Any:
    """Return a rule, or weights by class name; raise ``ValueError`` for anything else."""
    if given in ("none", BALANCED, EFFECTIVE):
        return given
    if not isinstance(given, Mapping) or not given:
        raise ValueError(
            f"expected none, {BALANCED}, {EFFECTIVE} or weights by class name, such as {{cat: 2, dog: 1}}, found "
            f"{as_found(given)}"
        )
    for name, weight in given.items():
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 < weight <= MOST_WEIGHT:
            raise ValueError(
                f"{as_found(name)}: expected a number above 0 and at most {MOST_WEIGHT:g}, found {as_found(weight)}"
            )
    return FrozenDict({str(name): float(weight) for name, weight in given.items()})


#: A rule, or a weight by class name.
_Weights = str | dict[str, float]
ClassWeights = Annotated[_Weights, PlainValidator(_class_weights, json_schema_input_type=_Weights)]
Padding = Annotated[int, Field(ge=0, le=16)]
#: Area of the window of a random resized crop, from and to, as a share of the image.
Crop = Annotated[tuple[Share, Share], AfterValidator(_in_order)]
#: Brightness, contrast, saturation and hue.
Jitter = tuple[Strength, Strength, Strength, Turn]


class ModelConfig(ConfigModel):
    """Which network, what it begins with, what of it trains, and what happens to its BatchNorm."""

    name: str
    """Name of the network, as `fedshift models` lists it."""
    head: Literal["linear", "mlp", "mlp-half"] = "linear"
    """Classifier: linear is one layer from features to logits, mlp has a hidden layer of the features' width with ReLU
    before it, mlp-half one of half that width.
    """
    #: Nodes never read it: the server sends what they need.
    weights: MayBeEmpty = ""
    """File (.safetensors, .pth or .pt) on the server's machine with the initial weights, or package:NAME for those of
    an installed package (`fedshift models --pretrained`); empty: random values by the seed.
    """
    weights_sha256: Digest = ""
    """SHA-256 of the initial weights, filled in by FedShift and checked when the run is repeated or resumed; empty: not
    known yet.
    """
    download: bool = False
    """Whether the server's machine may download the library's pretrained weights (torchvision:, timm:)."""
    #: What is frozen, statistics of BatchNorm included, is sent to each node once.
    freeze: Freeze = "none"
    """Part that does not train: none, encoder, norm (normalisation layers), or stages:N (the first N stages)."""
    #: Without it a frozen encoder's features are constant, and no loss of prototypes or contrast has a gradient.
    projection: int = Field(0, ge=0, le=65_536)
    """Width of a trainable layer (Linear, ReLU) at the end of the encoder, whose output is the feature; 0: none."""
    precompute: bool = False
    """Whether all that is frozen and comes before all that trains is computed once for each image and kept (on or off).

    """
    precompute_maps: Literal["float16", "bfloat16", "float32"] = "float16"
    """Number format of kept feature maps; feature vectors are kept in float32."""
    precompute_gb: float = Field(20.0, gt=0, le=1_000_000)
    """Largest size in GB (10^9 bytes) of all kept features on a machine."""
    #: Not empty: no weights travel. In a deployment a node may name its own (``--node-config 'model="cnn2"'``).
    per_node: tuple[str, ...] = ()
    """Networks given to the nodes in turn, by their place; empty: all nodes have `model.name`."""
    #: group: Hsieh et al., ICML 2020. Not here: FedWon (Zhuang, Lyu, ICLR 2024, arXiv 2306.05879), which takes all
    #: normalisation out and standardises the convolutions' weights; FixBN (Zhong et al., arXiv 2303.06530), which from
    #: some round on trains with averaged statistics that stand still.
    bn: BatchNormMode = "average"
    """BatchNorm: average its parameters and statistics, keep them local (FedBN), freeze them as initialised, or put
    GroupNorm in its place (group).
    """
    #: 2 as in Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    groups: Annotated[int, For("bn", "group")] = Field(2, ge=1, le=4096)
    """Number of channel groups of each GroupNorm."""
    #: Re-estimated after each round that is scored (``evaluate.bn``); training goes on with the averaged ones.
    bn_keep: Literal["averaged", "retaken"] = "averaged"
    """BatchNorm statistics of the kept model: averaged over the nodes, or re-estimated on their training images
    (retaken).
    """

    def network_at(self, place: int) -> str:
        """Return the network of the node at a place in the federation: those of ``per_node`` in turn, if any."""
        return self.per_node[place % len(self.per_node)] if self.per_node else self.name

    @property
    def names(self) -> tuple[str, ...]:
        """The networks of the server and of the nodes."""
        return self.name, *self.per_node

    @property
    def encoder_rests(self) -> bool:
        """Whether nothing of the encoder trains: it is frozen as a whole and has no projection."""
        return self.freeze == "encoder" and not self.projection


class TrainConfig(ConfigModel):
    """Local training on cross-entropy and the method's terms."""

    epochs: Rounds
    """Local epochs in a round."""
    batch_size: BatchSize
    """Images in a training step."""
    lr: float = Field(gt=0)
    """Learning rate of local training in the first round."""
    momentum: Fraction = 0.9
    """Momentum of SGD; 0: none."""
    weight_decay: NonNegativeFloat = 1e-5
    """Weight decay of local training, decoupled from the gradient in adamw; 0: none."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimizer of local training; adam and adamw have their usual betas."""
    clip: float | None = Field(None, gt=0)
    """Largest L2 norm of a step's gradient; null: no clipping."""
    lr_decay: Share = 1.0
    """Factor of the learning rate from round to round; 1: no decay."""
    #: The formula, with ``lr_decay`` and the warm-up, is that of :meth:`lr_factor`.
    schedule: Literal["none", "linear", "cosine", "step"] = "none"
    """Learning rate over the rounds: none, linear or cosine down to `schedule_end` times lr, or a factor at each of
    `schedule_steps` (step).
    """
    schedule_end: Annotated[float, For("schedule", "linear", "cosine")] = Field(0.1, ge=0, le=1)
    """Learning rate of the last round, in multiples of lr, for linear and cosine."""
    schedule_steps: tuple[Rounds, ...] = Field((), max_length=MOST_STEPS)
    """Rounds, in rising order, after which the learning rate is multiplied by `schedule_factor`, for step."""
    schedule_factor: Annotated[float, For("schedule", "step")] = Field(0.1, gt=0, le=1)
    """Factor of the learning rate at each of `schedule_steps`."""
    warmup_rounds: int = Field(0, ge=0, le=MOST_ROUNDS)
    """First rounds, in which the learning rate rises linearly to lr; 0: no warm-up."""
    #: Equations, and what they are applied to: docs/guide/training.md.
    loss: Literal["cross-entropy", "focal"] = "cross-entropy"
    """Loss of a classification: cross-entropy, or focal loss (Lin et al., ICCV 2017)."""
    focal_gamma: Annotated[float, For("loss", "focal")] = Field(2.0, ge=0, le=10)
    """Exponent of focal loss; 0 is cross-entropy. With loss=focal."""
    class_weights: ClassWeights = "none"
    """Weight of an image's loss by its class: none, balanced (n / (K n_c)), effective (effective number of images, Cui
    et al., CVPR 2019), or numbers by class name; a class without one has 1.
    """
    class_beta: Annotated[float, For("class_weights", EFFECTIVE)] = Field(0.999, ge=0, lt=1)
    """Beta of class_weights=effective; 0 weighs all alike."""
    class_counts: Annotated[Literal["node", "federation"], For("class_weights", BALANCED, EFFECTIVE)] = "node"
    """Numbers of images behind class_weights=balanced|effective: each node's own, or those of all nodes, which the
    server then sends.
    """
    sampler: Literal["shuffle", "balanced"] = "shuffle"
    """Images of a training step: all of the node's once an epoch (shuffle), or equally many of each class that it
    holds, as many images an epoch (balanced).
    """
    precision: Precision = "auto"
    """Number format of training: auto, bf16 or float32."""
    #: What was measured is kept in config.yaml, from which a resumed or repeated run has it. hardware is what every run
    #: took before there was a choice, with channels_last.
    arithmetic: Literal[Arithmetic, "", "hardware"] = ""
    """Number format and memory layout that precision=auto stands for; empty: the fastest on the nodes, measured before
    round 1; hardware: bf16 where the device computes in it.
    """
    threads: int = Field(0, ge=0, le=MOST_CORES)
    """CPU threads of a node; 0: one in simulation, or as many as cpus-per-client says."""

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
    def asks_federation(self) -> bool:
        """Whether nodes need the numbers of images of all nodes."""
        return self.class_weights in (BALANCED, EFFECTIVE) and self.class_counts == "federation"

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


class ImageConfig(ConfigModel):
    """From uint8 images to what the network sees."""

    crop_padding: Padding = 0
    """Pixels of padding before a random crop; 0: no crop."""
    flip: bool = False
    """Whether images are flipped horizontally at random."""
    resized_crop: Crop | None = None
    """Area of a random resized crop, from and to, as shares of the image; null: off."""
    jitter: Jitter = (0.0, 0.0, 0.0, 0.0)
    """Strength of random brightness, contrast, saturation and hue, as in torchvision's ColorJitter; 0: off."""
    #: As in SimCLR.
    jitter_p: Probability = 0.8
    """Probability that an image is jittered."""
    grayscale: Probability = 0.0
    """Probability that an image loses its colour; 0: off."""
    views: Literal[1, 2] = 1
    """Augmented views of each training image; 2 for contrastive methods."""
    cached_views: int = Field(1, ge=1, le=1000)
    """With model.precompute=on: augmented views of each training image that are kept, of which each epoch takes one; 1:
    the image as it is.
    """
    #: ImageNet's, as the FPL code family uses.
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean of each channel that normalisation subtracts, for values from 0 to 1; the default is ImageNet's, with
    model.weights=package:NAME that of the weights.
    """
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Standard deviation of each channel, above 0, that normalisation divides by; the default is ImageNet's, with
    model.weights=package:NAME that of the weights.
    """
    #: All but fixed: by statistics that nodes tell once (``statistics.share=nodes``); docs/methods/fedrdn.md.
    normalization: Literal["fixed", "own", "fedrdn", "harmonised"] = "fixed"
    """Mean and standard deviation that images are normalised by: `mean` and `std` (fixed), each node's own (own), in
    training those of a random node and in tests the node's own (fedrdn), or `mean` and `std` after each node's have
    become the federation's (harmonised).
    """
    normalization_draw: Annotated[Literal["image", "batch"], For("normalization", "fedrdn")] = "image"
    """With normalization=fedrdn: a node is drawn for each image (image), or one for the mean and one for the standard
    deviation of a whole batch, as in the authors' code (batch).
    """
    #: Larger batches fall out of a CPU's cache.
    eval_batch: int = Field(64, ge=1, le=MOST_BATCH)
    """Images in a batch of evaluation."""

    @property
    def augmentations(self) -> tuple[str, ...]:
        """The keys by which training images are augmented."""
        return tuple(key for key in AUGMENTATION if getattr(self, key) != type(self).model_fields[key].default)

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
