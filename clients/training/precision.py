"""In which number format a node computes, and on which device."""

import contextlib
from typing import Literal

import torch

from clients.training.settings import Precision


def default_device() -> torch.device:
    """Return the first CUDA device where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def has_bf16(device: torch.device) -> bool:
    """Tell whether bfloat16 is computed by hardware: CUDA with bf16, or a CPU with AMX or AVX512-BF16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    # There is no public question for the CPU; both exist since torch 2.4.
    return any(
        bool(getattr(torch.cpu, name, bool)()) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    )


def resolve(precision: Precision, device: torch.device) -> Literal["bf16", "float32"]:
    """Return what ``auto`` means on this device; the other values are returned as they are."""
    if precision == "auto":
        return "bf16" if has_bf16(device) else "float32"
    return precision


def autocast(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return the context in which a forward pass runs."""
    if resolve(precision, device) == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
