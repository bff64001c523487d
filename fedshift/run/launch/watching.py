"""What ``fedshift status`` prints, once or until the run ends."""

import json
import sys
import time
from pathlib import Path

from fedshift.run.launch import orphans, site_status
from fedshift_app.config.arguments import not_empty
from fedshift_app.run import exit_codes, status
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.paths import user_path

WATCH_SECONDS = 2.0


def show(arguments: list[str], *, as_json: bool, watch: bool, site: str) -> int:
    """Print the state of a run or a site; return the exit code.

    Args:
        arguments: ``[RUN_FOLDER] [output-dir=DIR]``; neither with ``site``.
        as_json: One JSON object on a line instead of a block.
        watch: Again every two seconds until the run, or every run of the site, has ended.
        site: A SuperLink's name in Flower's configuration, or empty.

    Raises:
        FedShiftError: If the state cannot be read.
    """
    if site and arguments:
        raise ConfigError("give either a run folder or --site: a site's SuperLink has no run folders")
    try:
        folder = None if site else _folder(arguments)
        going_on = True
        while going_on:
            report = status.read(folder) if folder else site_status.read(site)
            block = status.block(report) if folder else site_status.block(report)
            print(json.dumps(report, ensure_ascii=False) if as_json else block, flush=True)
            going_on = watch and (
                report["state"] in status.GOING_ON if folder else site_status.goes_on(report)
            )  # fmt: skip
            time.sleep(WATCH_SECONDS if going_on else 0)
        return status.exit_code(report) if folder else exit_codes.OK
    finally:
        if not watch:
            for left in orphans.leftovers():
                print(left, file=sys.stderr, flush=True)


def _folder(arguments: list[str]) -> Path:
    named, output_dir = [], "runs"
    for argument in arguments:
        if argument.startswith("output-dir="):
            output_dir = not_empty("output-dir", argument.removeprefix("output-dir="))
        else:
            named.append(argument)
    if len(named) > 1:
        raise ConfigError(f"one run folder at a time, found {as_found(named)}")
    return user_path(named[0]) if named else status.newest(user_path(output_dir, "output-dir"))
