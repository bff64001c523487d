"""Names and makes the folder of a run."""

import os
import time
from pathlib import Path

from fedshift_app.config import run_name
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shown
from fedshift_core.paths import user_path


def check_place(output_dir: Path) -> None:
    """Refuse a folder in which no run folder can be made, before any work; it need not exist yet.

    Raises:
        ConfigError: With the folder and the reason.
    """
    base = user_path(output_dir, "output-dir")
    existing = next(path for path in (base, *base.parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise ConfigError(f"output-dir: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"output-dir: cannot write to {base}: {existing} is not writable for this user")


def check_free(output_dir: Path, name: str, resumed: Path | None = None) -> None:
    """Refuse a name that a run has already, or a place where no run can be, before any work.

    Args:
        output_dir: The folder of run folders.
        name: The name; empty for none.
        resumed: The folder of the run that is continued, which keeps its name; None for a new run.

    Raises:
        ConfigError: With the folder.
    """
    if resumed is not None:
        if name not in ("", resumed.name):
            raise ConfigError(
                f"{run_name.KEY}: the run that is resumed is called {as_found(resumed.name)}, requested is "
                f"{as_found(name)}; leave the key out"
            )
        return
    check_place(output_dir)
    if name and os.path.lexists(path := user_path(output_dir, "output-dir") / name):
        raise ConfigError(f"{run_name.KEY}: {shown(path)} exists already; choose another name, or remove it")


def make_folder(output_dir: Path, name: str, config: RunConfig, method: str) -> Path:
    """Make the folder of a new run: of its name, or else of experiment, method, seed and time.

    Args:
        output_dir: The folder of run folders.
        name: The name that the user chose; empty for none.
        config: The run's.
        method: The method as trackers show it.

    Raises:
        ConfigError: If it cannot be made.
    """
    base = user_path(output_dir, "output-dir")
    stem = name or f"{config.experiment}-{method}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    attempt = 0
    while True:
        path = base / (f"{stem}-{attempt}" if attempt else stem)
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            check_free(output_dir, name)
            attempt += 1
        except OSError as error:
            raise ConfigError(f"output-dir: cannot write to {base}: {error.strerror}") from None
