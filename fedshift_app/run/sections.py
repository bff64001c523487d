"""Sections of ``results.json`` that features make of one round, in files of the run folder.

``NAME.json`` is that of the last round scored on all test images, ``checkpoint/NAME-00007.json`` that of a round which
may be chosen.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_app.run import checkpoints
from fedshift_app.run.files import checked, read_json
from fedshift_app.run.shown import features_of
from fedshift_core.errors import ConfigError
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
            made[feature.file] = checked(imported(feature.section), given, f"{place}: {feature.file}")
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
                content = read_json(file)
                models({feature.file: content}, config, str(file))
                if content["round"] == server_round:
                    known[feature.file] = content
            except (ConfigError, LookupError, TypeError) as error:
                log.warning("%s is left out: %s", file, error)
    return known
