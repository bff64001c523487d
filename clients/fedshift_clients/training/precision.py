"""In which number format a node computes, with maps in which layout, and on which device."""

import contextlib
from typing import Literal

import torch

from fedshift_clients.training.settings import Precision, TrainConfig
from fedshift_core.params import Arithmetic

Format = Literal["bf16", "float32"]
LAYOUTS = {"channels_last": torch.channels_last, "nchw": torch.contiguous_format}


def default_device() -> torch.device:
    """Return the first CUDA device where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def has_bf16(device: torch.device) -> bool:
    """Tell whether bfloat16 is computed by hardware: CUDA with bf16, or a CPU with AMX or AVX512-BF16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    # There is no public question for the CPU.
    return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def by_hardware(device: torch.device) -> Arithmetic:
    """Return what a device takes where nothing was measured."""
    return "bf16/channels_last" if has_bf16(device) else "float32/channels_last"


def arithmetic(train: TrainConfig, device: torch.device) -> Arithmetic:
    """Return how a node computes: as the run says, or by its own hardware. A precision by name is channels_last."""
    if train.precision == "bf16":
        return "bf16/channels_last"
    if train.precision == "float32":
        return "float32/channels_last"
    if train.arithmetic == "" or train.arithmetic == "hardware":
        return by_hardware(device)
    return train.arithmetic


def parts(name: Arithmetic) -> tuple[Format, torch.memory_format]:
    """Return an arithmetic's number format and the layout of its maps."""
    of_products, _, layout = name.partition("/")
    return "bf16" if of_products == "bf16" else "float32", LAYOUTS[layout]


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return the context in which a forward pass runs; ``auto`` is bfloat16 where hardware computes in it."""
    if precision == "bf16" or (precision == "auto" and has_bf16(device)):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
