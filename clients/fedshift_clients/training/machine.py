"""On what a figure was measured."""

import functools
import os
import platform
from pathlib import Path

import torch

from fedshift_clients.training import precision
from fedshift_core.plural import plural

#: What decides how fast bfloat16 is, from the fastest.
AMX, AVX512, NONE = "AMX", "AVX512-BF16 without AMX", "no bfloat16"


def bfloat16() -> str:
    """Return what the processor has for bfloat16."""
    if not precision.has_bf16(torch.device("cpu")):
        return NONE
    return AMX if torch.cpu._is_amx_tile_supported() else AVX512


@functools.cache
def describe() -> str:
    """Return processor, cores, torch's vectors, what there is for bfloat16, accelerators, and torch's version."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    vectors = torch.backends.cpu.get_cpu_capability()
    parts = [(models or [platform.processor()])[0], plural(os.cpu_count() or 1, "core"), vectors, bfloat16()]
    parts += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ", ".join([*parts, f"torch {torch.__version__}"])
