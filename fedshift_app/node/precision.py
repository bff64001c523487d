"""What trains fastest on this machine: measured once for each network, kept with the decoded images.

A node tells the server, which takes what most nodes tell (``fedshift_app.run.precision``).
"""

import functools
import hashlib
import json
import logging
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import BaseModel, ValidationError

from fedshift_clients.training import autotune, machine, precision
from fedshift_clients.training.autotune import Found, Work
from fedshift_clients.training.settings import ModelConfig
from fedshift_core import private_files
from fedshift_core.atomic_io import write_atomically
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shown
from fedshift_core.params import ARITHMETICS, Arithmetic
from fedshift_datasets.io import cache

if TYPE_CHECKING:
    from fedshift_app.config.sections import RunConfig

log = logging.getLogger("fedshift")

#: Environment variable: take this arithmetic on this machine and measure none; or ``hardware``, as by its name.
ASKED = "FEDSHIFT_ARITHMETIC"
FOLDER = "arithmetic"  # within that of the decoded images
FORMAT: Literal[2] = 2  # of an entry
LARGEST_FILE = 10_000  # bytes of an entry


class Entry(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A choice that is kept.

    Attributes:
        machine: Where it was measured (``fedshift_clients.training.machine.describe``), torch's version included.
        device: ``cpu`` or ``cuda``.
        work: What was measured.
        choice: What is fastest.
        milliseconds: The shortest step of each arithmetic.
        images: Of the measured batches.
        measured: When.
    """

    format: Literal[2] = FORMAT
    machine: str
    device: str
    work: Work
    choice: Arithmetic
    milliseconds: dict[Arithmetic, float]
    images: int
    measured: str


def fastest_here(config: "RunConfig", network: ModelConfig) -> Arithmetic | None:
    """Return what trains a node's network fastest on its machine; None where the run says how nodes compute.

    With ``model.precompute`` of an encoder it is float32: features are computed once, for all runs, and what is left
    is small.

    Raises:
        ConfigError: If ``$FEDSHIFT_ARITHMETIC`` is none.
    """
    if config.train.precision != "auto" or config.train.arithmetic:
        return None
    if network.precompute and network.freeze == "encoder":
        return "float32/channels_last"
    size = config.dataset.pixels
    return _known(autotune.work_of(network, config.train, size), os.environ.get(ASKED, ""))


@functools.lru_cache(maxsize=64)
def _known(work: Work, requested: str) -> Arithmetic:
    device = precision.default_device()
    if not requested:
        return chosen(work, device)
    named: dict[str, Arithmetic] = {"hardware": precision.by_hardware(device), **{name: name for name in ARITHMETICS}}
    if requested not in named:
        raise ConfigError(f"{ASKED} is {as_found(requested)}; allowed are {', '.join(named)}")
    return named[requested]


def chosen(work: Work, device: torch.device, *, renew: bool = False) -> Arithmetic:
    """Return the choice that is kept; measure it where none is, or ``renew`` it.

    A cache that cannot be written costs a warning and the next measurement. What takes too long to be measured is not
    kept: the machine may only have been busy.
    """
    about = {"format": FORMAT, "machine": machine.describe(), "device": device.type, "work": work}
    key = json.dumps([FORMAT, about["machine"], device.type, asdict(work)])
    path = folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    found: Found | None = None
    try:
        private_files.make_folder(cache.cache_dir())  # images will lie there, too
        private_files.make_folder(path.parent)
        with private_files.locked(path.parent / ".lock"):  # one process measures, others find what it kept
            kept = None if renew else read(path)
            if kept is not None and all(getattr(kept, name) == value for name, value in about.items()):
                return kept.choice
            found = autotune.measure(work, device)
            if found.milliseconds:
                entry = Entry(**asdict(found), **about, measured=time.strftime("%Y-%m-%dT%H:%M:%S%z"))
                write_atomically(path, entry.model_dump_json(indent=2) + "\n")
    except OSError as error:
        why = error.strerror or error
        log.warning("what trains fastest cannot be kept in %s (%s): each run measures it", shown(path.parent), why)
    return (found or autotune.measure(work, device)).choice


def entries() -> list[tuple[Path, Entry | None]]:
    """Return all that is kept, of whatever machine; None for a file that is damaged."""
    return [(path, read(path)) for path in sorted(folder().glob("*.json"))]


def folder() -> Path:
    """Return where choices are kept."""
    return cache.cache_dir() / FOLDER


def read(path: Path) -> Entry | None:
    """Return a kept choice; None if there is none, or the file is none."""
    try:
        with path.open("rb") as file:
            return Entry.model_validate_json(file.read(LARGEST_FILE))
    except (OSError, ValidationError):
        return None


def is_here(entry: Entry) -> bool:
    """Tell whether a choice is of this machine with this torch and this version of what is measured."""
    return (entry.machine, entry.device) == (machine.describe(), precision.default_device().type)


def renew(entry: Entry) -> Arithmetic:
    """Measure again what a kept choice is of.

    Raises:
        ConfigError: If its network is not there any more.
    """
    return chosen(entry.work, precision.default_device(), renew=True)
