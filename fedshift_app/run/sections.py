"""Sections of ``results.json`` that features make of one round, in files of the run folder.

``NAME.json`` is that of the last round scored on all test images, ``checkpoint/NAME-00007.json`` that of a round which
may be chosen.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedshift_app.config.sections import RunConfig
from fedshift_app.run import checkpoints
from fedshift_app.run.config_file import first_problem
from fedshift_app.run.shown import features_of
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.registry import imported

log = logging.getLogger("fedshift")


def files(folder: Path, key: str, server_round: int) -> list[Path]:
    """Return the files of a section: that of the last round, and that of a round that may be chosen."""
    return [folder / f"{key}.json", folder / checkpoints.FOLDER / f"{key}-{server_round:05d}.json"]


def models(content: Mapping[str, Any], config: RunConfig, place: str) -> dict[str, Any]:
    """Return the sections of a content of ``results.json`` as their features read them, by key.

    Raises:
        ConfigError: With the file ``place``, if no run has written one.
    """
    made = {}
    for feature in features_of(config):
        if feature.section and (given := content.get(feature.file)) is not None:
            try:
                made[feature.file] = imported(feature.section).model_validate(given)
            except ValidationError as error:
                problem, value = first_problem(error)
                raise ConfigError(f"{place}: {feature.file}: {problem}, found {as_found(value)}") from None
    return made


def kept(folder: Path, server_round: int | None, config: RunConfig) -> dict[str, Any]:
    """Return the sections of a round in a run folder by key; those that are not there are left out.

    A warning names a file that cannot be used.
    """
    known: dict[str, Any] = {}
    for feature in features_of(config) if server_round is not None else ():
        for file in files(folder, feature.file, server_round or 0) if feature.section else ():
            if feature.file in known or not file.is_file():
                continue
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
                models({feature.file: content}, config, str(file))
                if content["round"] == server_round:
                    known[feature.file] = content
            except (OSError, ValueError, TypeError, RecursionError, ConfigError) as error:
                log.warning("%s is left out: %s", file, error)
    return known
