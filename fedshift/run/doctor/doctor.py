"""``fedshift doctor``: prints this machine, its stored precision choices, and its problems."""

import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import torch

from fedshift.run.doctor import diagnostics, hub_check
from fedshift_app import __version__
from fedshift_app.config.files import APP
from fedshift_app.node import precision as node_precision
from fedshift_app.node import state_folder
from fedshift_app.run import exit_codes
from fedshift_app.run.versions import VERSIONS_OF
from fedshift_clients.training import machine, precision
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
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
    report = facts() | {"renewed": renewed, "problems": [asdict(problem) for problem in diagnostics.problems()]}
    print(json.dumps(report, ensure_ascii=False) if as_json else "\n".join(_lines(report)))
    return exit_codes.FAILED if report["problems"] else exit_codes.OK


def show_publishing(*, as_json: bool) -> int:
    """Print the problems that Flower Hub would have with the app's folder; return the exit code.

    Args:
        as_json: One JSON object instead of lines.
    """
    report = {"folder": str(APP), "problems": [asdict(problem) for problem in hub_check.problems(APP)]}
    lines = [f"Flower Hub: {shown(APP)}", *_problem_lines(report)]
    print(json.dumps(report, ensure_ascii=False) if as_json else "\n".join(lines))
    return exit_codes.FAILED if report["problems"] else exit_codes.OK


def facts() -> dict[str, Any]:
    """Return the description of this machine as a JSON object."""
    memory = psutil.virtual_memory()
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    folder = diagnostics.existing(cache.cache_dir())
    return {
        "machine": {
            "is": machine.describe(), "system": platform.platform(), "cores": os.cpu_count(),
            "cores_granted": diagnostics.cores_granted(), "flags": flags(), "memory": memory.total,
            "memory_free": memory.available,
            "gpus": [
                {"name": gpu.name, "memory": gpu.total_memory, "capability": f"{gpu.major}.{gpu.minor}"} for gpu in gpus
            ],
        },
        "torch": {
            "version": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads(),
            "vectors": torch.backends.cpu.get_cpu_capability(), "onednn": diagnostics.has_onednn(),
            "bf16": precision.has_bf16(precision.default_device()),
        },
        "versions": {"fedshift": __version__, "python": platform.python_version()}
        | {name: diagnostics.installed(name) for name in VERSIONS_OF},
        "extras": diagnostics.extras(),
        "folders": {
            "images": str(cache.cache_dir()), "images_free": shutil.disk_usage(folder).free,
            "state": str(state_folder.state_dir()), "runs": str(Path(diagnostics.RUNS).absolute()),
            "runs_free": shutil.disk_usage(diagnostics.existing(Path(diagnostics.RUNS))).free,
        },
        "ports": {
            "loopback": not diagnostics.refused(0, diagnostics.LOOPBACK), "superlink": diagnostics.SUPERLINK,
            "superlink_free": not diagnostics.refused(diagnostics.SUPERLINK),
        },
        "asked": os.environ.get(node_precision.ASKED, ""),
        "choices": [_choice(path, entry) for path, entry in node_precision.entries()],
    }  # fmt: skip


def flags() -> list[str]:
    """Return the processor's relevant instructions; none if the system does not list them."""
    if not CPU_INFO.is_file():
        return []
    lines = (line.partition(":") for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines())
    names = next((words for key, _, words in lines if key.strip() in ("flags", "Features")), "")
    return [flag for flag in FLAGS if flag in names.split()]


def _choice(path: Path, entry: node_precision.Entry | None) -> dict[str, Any]:
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


def _lines(report: Mapping[str, Any]) -> list[str]:
    host, built, folders, ports = report["machine"], report["torch"], report["folders"], report["ports"]
    gpus = [
        f"{gpu['name']} ({gpu['memory'] / 1e9:.0f} GB, compute capability {gpu['capability']})" for gpu in host["gpus"]
    ]
    rows = [
        ("machine", host["is"]),
        ("system", host["system"]),
        ("cores", f"{host['cores']}, of which {host['cores_granted']:g} may be used"),
        ("instructions", " ".join(host["flags"]) or "not reported by the system"),
        ("memory", f"{host['memory'] / 1e9:.1f} GB, {host['memory_free'] / 1e9:.1f} GB free"),
        ("GPUs", ", ".join(gpus) or "none"),
        (
            "torch",
            f"{built['version']}, {built['vectors']}, CUDA {built['cuda'] or 'none'}, threads: {built['threads']}",
        ),
        ("versions", ", ".join(f"{name} {number or 'missing'}" for name, number in report["versions"].items())),
        ("extras", "; ".join(map(_extra, report["extras"].items())) or "unknown"),
        ("images", f"{shown(folders['images'])}, {folders['images_free'] / 1e9:.1f} GB free"),
        ("state", shown(folders["state"])),
        ("run folders", f"{shown(folders['runs'])}, {folders['runs_free'] / 1e9:.1f} GB free"),
        (
            "ports",
            f"{diagnostics.LOOPBACK} {'can' if ports['loopback'] else 'cannot'} be listened on; {ports['superlink']}, "
            f"of `fedshift superlink`, is {'free' if ports['superlink_free'] else 'taken'}",
        ),
    ]
    lines = [f"{name:<13} {value}" for name, value in rows]
    lines += ["", "what trains fastest (train.precision=auto)", *_choices(report)]
    lines += [f"  renewed: {entry['network']}: {entry['was']} -> {entry['is']}" for entry in report["renewed"]]
    return [*lines, "", *_problem_lines(report)]


def _problem_lines(report: Mapping[str, Any]) -> list[str]:
    lines = [f"  {problem['what']}\n    {problem['remedy']}" for problem in report["problems"]]
    return ["problems", *(lines or ["  none found"])]


def _extra(of: tuple[str, Mapping[str, str | None]]) -> str:
    name, packages = of
    missing = [package for package, number in packages.items() if number is None]
    return f"{name} lacks {', '.join(missing)}" if missing else f"{name} is there"


def _choices(report: Mapping[str, Any]) -> list[str]:
    if report["asked"]:
        return [f"  {node_precision.ASKED}={report['asked']}: nothing is measured"]
    if not report["choices"]:
        return ["  nothing yet: the first run of a network measures it"]
    return [line for choice in report["choices"] for line in _choice_lines(choice)]


def _choice_lines(choice: Mapping[str, Any]) -> Sequence[str]:
    if choice.get("damaged"):
        return [f"  {choice['file']} is damaged, so it will be measured again"]
    work = choice["work"]
    what = f"{shown(work['network'])} at {work['size']} pixels, batches of {work['batch']}"
    times = ", ".join(f"{name} {value:.3g}" for name, value in choice["milliseconds"].items())
    where = "" if choice["here"] else f" [another machine, torch or FedShift: {shown(choice['machine'])}]"
    return [
        f"  {what}: {choice['choice']}{where}",
        f"    ms a step of {choice['images']}: {times}; {choice['measured']}",
    ]
