"""What a node is told about models and training. Pydantic only: the command line reads it without torch."""

from typing import Literal

from pydantic import BaseModel, Field, field_validator

Precision = Literal["auto", "bf16", "float32"]
BatchNormMode = Literal["average", "local", "freeze"]


class ModelConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Which network, and what happens to its BatchNorm."""

    name: Literal["cnn", "resnet10", "resnet18"]
    #: average: parameters and running statistics travel and are averaged; local: they never leave the
    #: node (FedBN); freeze: statistics, scale and shift stay as they were initialised.
    bn: BatchNormMode = "average"


class TrainConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Local training: SGD on cross-entropy and the method's terms."""

    epochs: int = Field(ge=1)  # local epochs a round
    batch_size: int = Field(ge=2)
    lr: float = Field(gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-5, ge=0)
    precision: Precision = "auto"
    threads: int = Field(0, ge=0)  # CPU threads of a node; 0: those that Ray gave, else one in simulation


class ImageConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """From uint8 images to what the network sees."""

    crop_padding: int = Field(0, ge=0, le=16)  # random crop after padding by so many pixels; 0: off
    flip: bool = False  # random horizontal flip
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)  # ImageNet's, as the FPL code family uses
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    eval_batch: int = Field(64, ge=1)  # images per batch in evaluation; larger ones fall out of a CPU's cache

    @field_validator("std")
    @classmethod
    def _above_zero(cls, std: tuple[float, float, float]) -> tuple[float, float, float]:
        if min(std) <= 0:
            raise ValueError(f"each must be above 0, found {list(std)}")
        return std
