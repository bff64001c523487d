"""The keys of ``fedshift report`` and its errors: no report may end in a traceback."""

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift_app.run import console
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import LARGEST_COUNT, as_found
from fedshift_core.paths import user_path
from fedshift_core.spelling import meant

if TYPE_CHECKING:
    from fedshift.lab.pages.report.build import Made

log = logging.getLogger("fedshift")

KEYS = ("data-dir", "images")
ALL = "all"
MAX_IMAGES = 2000  # of each domain; default of the key ``images``


def run(folder: Path, arguments: list[str]) -> "Made":
    """Write the report of a run.

    Args:
        folder: The run folder.
        arguments: ``key=value``, of ``KEYS``.

    Returns:
        The page, and the figures that it lacks.

    Raises:
        ConfigError: If a key or its value is wrong, or the folder is not a run folder.
        FedShiftError: If the report cannot be made for any other reason.
    """
    given = dict(_pair(argument) for argument in arguments)
    data_dir = user_path(given["data-dir"], "data-dir") if "data-dir" in given else None
    limit = _limit(given.get("images", str(MAX_IMAGES)))
    console.set_up()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of libraries for their developers
            from fedshift.lab.pages.report import build  # imports matplotlib, torch and scikit-learn: only for a report

            return build.make(folder, data_dir, limit)
    except FedShiftError:
        raise
    except Exception as error:  # the run is finished even if a figure fails
        log.debug("the report failed", exc_info=True)
        raise FedShiftError(f"the report cannot be made: {type(error).__name__}: {error}") from error


def _pair(argument: str) -> tuple[str, str]:
    key, _, value = argument.partition("=")
    if not value:
        raise ConfigError(f"{as_found(argument)} is not of the form key=value")
    if key not in KEYS:
        raise ConfigError(f"unknown key {as_found(key)}; there are {', '.join(KEYS)}{meant(key, KEYS)}")
    return key, value


def _limit(value: str) -> int | None:
    if value == ALL:
        return None
    number = int(value) if value.isdecimal() and len(value) < 20 else 0
    if not 1 <= number <= LARGEST_COUNT:
        raise ConfigError(f"images: expected a whole number of at least 1 or {ALL}, found {as_found(value)}")
    return number
