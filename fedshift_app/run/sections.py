"""Sections of ``results.json`` that features make of one round, in files of the run folder.

``NAME.json`` is that of the last round scored on all test images, ``checkpoint/NAME-00007.json`` that of a round which
may be chosen.
"""

import json
import logging
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedshift_app.config.sections import RunConfig
from fedshift_app.run import checkpoints
from fedshift_app.run.config_file import first_problem
from fedshift_app.run.shown import features_of
from fedshift_core.features import Feature
from fedshift_core.limits import as_found
from fedshift_core.registry import imported

log = logging.getLogger("fedshift")


def files(folder: Path, key: str, server_round: int, *, chosen: bool = True) -> list[Path]:
    """Return the files of a section: that of the last round, and that of a round that may be chosen."""
    names = [folder / f"{key}.json", folder / checkpoints.FOLDER / f"{key}-{server_round:05d}.json"]
    return names if chosen else names[:1]


def kept(folder: Path, server_round: int | None, config: RunConfig) -> dict[str, Any]:
    """Return the sections of a round in a run folder by key; those that are not there are left out.

    A warning names a file that cannot be used.
    """
    known: dict[str, Any] = {}
    for feature in features_of(config) if server_round is not None else ():
        for file in files(folder, feature.file, server_round or 0) if feature.section else ():
            if feature.file not in known and (content := _read(file, feature)) and content["round"] == server_round:
                known[feature.file] = content
    return known


def _read(file: Path, feature: Feature) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        imported(feature.section).model_validate(content)
    except ValidationError as error:
        problem, value = first_problem(error)
        log.warning("%s is left out: %s, found %s", file, problem, as_found(value))
        return None
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s is left out: %s", file, error)
        return None
    return content
