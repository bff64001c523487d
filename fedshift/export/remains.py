"""Lists and removes what is left of a run that a site withdraws from: all that was made with its images."""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedshift.run.reading import Record
from fedshift_app.run.files import CONFIG_FILE, read_json
from fedshift_core import atomic_io
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_core.yaml_files import read_yaml

MODEL_FILE = "model.json"


def of_run(record: Record, sums: Path | None) -> list[Path]:
    """Return what is removed: the run folder first, then folders next to it that were made of it, and the site's file.

    These are runs that scored its models again, and models that were saved there.

    Args:
        record: The run.
        sums: The file of the site's sums; None where the run kept them.
    """
    run_id = str(record.config_file.get("run_id", ""))
    near = [path for path in sorted(record.folder.parent.iterdir()) if path.is_dir() and path != record.folder]
    made = [path for path in near if run_id and run_id in _origins(path)]
    return [record.folder, *made, *([] if sums is None else [sums])]


def _origins(folder: Path) -> Iterator[str]:
    """Yield the runs whose model a folder has."""
    with contextlib.suppress(ConfigError, AttributeError):
        yield _text((read_yaml(folder / CONFIG_FILE).get("scored_again") or {}).get("run_id"))
    with contextlib.suppress(ConfigError, AttributeError):
        yield _text((read_json(folder / MODEL_FILE).get("origin") or {}).get("run_id"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def described(removed: Sequence[Path]) -> list[str]:
    """Return a line of each folder or file that is removed, with what is in it."""
    lines = []
    for path in removed:
        if path.is_file():
            lines.append(shown(path.name))
            continue
        files = [each for each in path.rglob("*") if each.is_file()]
        names = ", ".join(sorted({each.relative_to(path).parts[0] for each in files}))
        lines.append(f"{shown(path.name)}: {plural(len(files), 'file')} ({shown(names, 2000)})")
    return lines


def elsewhere(record: Record) -> list[str]:
    """Return what may be left of the site where this command cannot reach."""
    lines = ["copies of this folder, saved models in other folders, pages and tables that were made of them"]
    lines += [f"the run at {tracker}" for tracker in record.config.tracking]
    if record.deployed:
        lines += ["the logs and the database of the SuperLink", "on the node: its log, ledger and state, its owner's"]
    return lines


def remove(paths: Sequence[Path]) -> None:
    """Remove folders and files.

    Raises:
        DiskError: If one cannot be removed; those before it are gone.
    """
    for path in paths:
        with atomic_io.writing(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
