"""What ``fedshift status`` prints, once or until the run ends."""

import json
import sys
import time
from pathlib import Path

from fedshift.run.launch import orphans, site_status
from fedshift_app.config.arguments import not_empty
from fedshift_app.run import exit_codes, metrics, status
from fedshift_app.run.metrics import Sample
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.paths import user_path

WATCH_SECONDS = 2.0
#: Numbers of ``--metrics`` that ``status.json`` has, by name.
STATUS = {
    "run": "the run and its state",
    "updated": "when its state was written, in seconds since 1970",
    "rounds": "rounds that it is to have",
    "seconds_left": "estimated seconds until its end",
    "nodes": "nodes by what they do",
}


def show(arguments: list[str], *, as_json: bool, watch: bool, site: str, as_metrics: bool = False) -> int:
    """Print the state of a run or a site; return the exit code, which is 0 of ``as_metrics`` in any state.

    Args:
        arguments: ``[RUN_FOLDER] [output-dir=DIR]``; neither with ``site``.
        as_json: One JSON object on a line instead of a block.
        watch: Again every two seconds until the run, or every run of the site, has ended.
        site: A SuperLink's name in Flower's configuration, or empty.
        as_metrics: Prometheus' text form instead, of a run.

    Raises:
        FedShiftError: If the state cannot be read.
    """
    if site and arguments:
        raise ConfigError("give either a run folder or --site: a site's SuperLink has no run folders")
    if as_metrics:
        if site or watch or as_json:
            raise ConfigError("--metrics: leave out --site, --watch and --json")
        now = status.read(_folder(arguments))
        print(metrics.text([*_samples(now), *metrics.of_rounds(Path(now.folder))], STATUS | metrics.ROUNDS))
        return exit_codes.OK
    try:
        folder = None if site else _folder(arguments)
        going_on = True
        while going_on:
            run = status.read(folder) if folder else None
            report = run.model_dump(mode="json") if run else site_status.read(site)
            block = status.block(run) if run else site_status.block(report)
            print(json.dumps(report, ensure_ascii=False) if as_json else block, flush=True)
            going_on = watch and (run.state in status.GOING_ON if run else site_status.goes_on(report))
            time.sleep(WATCH_SECONDS if going_on else 0)
        return status.exit_code(run) if run else exit_codes.OK
    finally:
        if not watch:
            for what, command in orphans.leftovers():
                print(f"{what}; to end: {command}", file=sys.stderr, flush=True)


def _samples(run: status.Status) -> list[Sample]:
    about = {"run": Path(run.folder).name, "experiment": run.experiment, "method": run.method, "state": run.state}
    nodes = {
        "connected": (run.nodes_in_all or len(run.nodes)) - sum(not node.connected for node in run.nodes),
        "silent": sum(node.silent_since is not None for node in run.nodes) + len(run.unknown),
        "asked": run.asked,
        "answered": run.answered,
    }
    return [
        Sample("run", 1, about),
        Sample("updated", (Path(run.folder) / status.FILE).stat().st_mtime),
        Sample("rounds", run.rounds),
        Sample("seconds_left", run.seconds_left),
        *(Sample("nodes", number, {"state": state}) for state, number in nodes.items()),
    ]


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
