"""On what a figure was measured."""

import os
import platform
from pathlib import Path

import torch


def describe() -> str:
    """Return processor, cores and torch's version."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{(models or [platform.processor()])[0]}, {os.cpu_count()} cores, torch {torch.__version__}"
