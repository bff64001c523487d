"""``fedshift doctor``: prints this machine, its stored precision choices, and its problems."""

import json
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml

from fedshift.run.doctor import diagnostics, hub
from fedshift_app import __version__
from fedshift_app.config.files import APP
from fedshift_app.node import precision as node_precision
from fedshift_app.node import state_folder
from fedshift_app.run import exit_codes
from fedshift_app.run.versions import VERSIONS_OF, installed
from fedshift_clients.training import machine, precision
from fedshift_core.disk_use import existing
from fedshift_core.errors import ConfigError
from fedshift_datasets.io import cache

#: Instructions of a processor that decide how fast it trains, by their names in /proc/cpuinfo.
FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "asimd", "bf16")
CPU_INFO = Path("/proc/cpuinfo")


def show(*, renew: bool, as_json: bool) -> int:
    """Print the machine, its stored choices and its problems; return the exit code.

    Args:
        renew: Repeat the stored measurements of this machine.
        as_json: One JSON object instead of lines.
    """
    renewed = _renew() if renew else []
    return _print(facts() | {"renewed": renewed}, diagnostics.problems(), as_json)


def show_publishing(*, as_json: bool) -> int:
    """Print the problems that Flower Hub would have with the app's folder; return the exit code.

    Args:
        as_json: One JSON object instead of lines.
    """
    return _print({"folder": str(APP)}, hub.problems(APP), as_json)


def _print(report: Mapping[str, Any], problems: list[diagnostics.Problem], as_json: bool) -> int:
    """Print a report and its problems, as JSON or as YAML; return the exit code."""
    if as_json:
        print(json.dumps({**report, "problems": list(map(asdict, problems))}, ensure_ascii=False))
    else:
        flow = None if any(isinstance(part, Mapping | list) for part in report.values()) else False  # a line a list
        print(
            yaml.safe_dump(_readable(report), sort_keys=False, allow_unicode=True, width=110, default_flow_style=flow)
        )
        lines = [f"  {problem.what}\n    {problem.remedy}" for problem in problems]
        print("\n".join(["problems", *(lines or ["  none found"])]))
    return exit_codes.FAILED if problems else exit_codes.OK


def _readable(value: Any) -> Any:
    """Return a value with its large numbers, which are bytes, in gigabytes, and two digits of others."""
    if isinstance(value, Mapping):
        return {key: _readable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(each) for each in value]
    if isinstance(value, float):
        return round(value, 2)
    return f"{value / 1e9:.1f} GB" if isinstance(value, int) and value > 1_000_000 else value


def facts() -> dict[str, Any]:
    """Return the description of this machine as a JSON object."""
    memory, images = psutil.virtual_memory(), cache.cache_dir()
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return {
        "machine": {
            "is": machine.describe(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "cores_granted": diagnostics.cores_granted(),
            "flags": flags(),
            "memory": memory.total,
            "memory_free": memory.available,
            "gpus": [
                {"name": gpu.name, "memory": gpu.total_memory, "capability": f"{gpu.major}.{gpu.minor}"} for gpu in gpus
            ],
        },
        "torch": {
            "version": str(torch.__version__),
            "cuda": torch.version.cuda,
            "threads": torch.get_num_threads(),
            "vectors": torch.backends.cpu.get_cpu_capability(),
            "onednn": diagnostics.has_onednn(),
            "bf16": precision.has_bf16(precision.default_device()),
        },
        "versions": {"fedshift": __version__, "python": platform.python_version()}
        | {name: installed(name) for name in VERSIONS_OF},
        "extras": diagnostics.extras(),
        "folders": {
            "images": str(images),
            "images_free": shutil.disk_usage(existing(images)).free,
            "state": str(state_folder.state_dir()),
            "runs": str(Path(diagnostics.RUNS).absolute()),
            "runs_free": shutil.disk_usage(existing(Path(diagnostics.RUNS))).free,
        },
        "ports": {
            "loopback": not diagnostics.refused(0, diagnostics.LOOPBACK),
            "superlink": diagnostics.SUPERLINK,
            "superlink_free": not diagnostics.refused(diagnostics.SUPERLINK),
        },
        "asked": os.environ.get(node_precision.ASKED, ""),
        "choices": [_choice(path, entry) for path, entry in node_precision.entries()],
    }


def flags() -> list[str]:
    """Return the processor's relevant instructions; none if the system does not list them."""
    if not CPU_INFO.is_file():
        return []
    lines = (line.partition(":") for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines())
    names = next((words for key, _, words in lines if key.strip() in ("flags", "Features")), "")
    return [flag for flag in FLAGS if flag in names.split()]


def _choice(path: Path, entry: node_precision.Entry | None) -> dict[str, Any]:
    """Return what trains fastest here (``train.precision=auto``); a damaged choice is measured again."""
    if entry is None:
        return {"file": path.name, "damaged": True}
    return {"file": path.name, "here": node_precision.is_here(entry)} | entry.model_dump(exclude={"format"})


def _renew() -> list[dict[str, str]]:
    """Repeat the stored measurements of this machine; return the old and the new choices."""
    done = []
    for path, entry in node_precision.entries():
        if entry is None or not node_precision.is_here(entry):
            continue
        try:
            now: str = node_precision.renew(entry)
        except ConfigError as error:
            now = f"not measured: {error}"
        done.append({"file": path.name, "network": entry.work.network, "was": entry.choice, "is": now})
    return done
