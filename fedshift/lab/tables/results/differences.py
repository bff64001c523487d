"""What differs between runs: settings, surroundings, images. One way to find it, one to say it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedshift.lab.tables.results.grouping import grouped
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import NODES
from fedshift_core.limits import some

OTHER_IMAGES = "other images"  # in place of a difference between rows
MARK = "†"  # follows the number of seeds of a row whose runs have different images
UNKNOWN = "not recorded"
_NAMED = 2  # runs of a value that are named; the rest is counted
_SPLITS, _VERSIONS = 4, 3  # of images, likewise


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the keys in which mappings differ, with the value of each; None where one lacks the key."""
    keys = sorted({key for config in configs for key in config})
    by_key = {key: [config.get(key) for config in configs] for key in keys}
    return {key: values for key, values in by_key.items() if vary(values)}


def vary(values: Sequence[Any]) -> bool:
    """Return whether values are not all equal."""
    return any(value is not values[0] and value != values[0] for value in values)


def line(by_key: Mapping[str, Sequence[Any]], names: Sequence[str]) -> str:
    """Return differences in one line: each value with the names of those that have it."""
    parts = []
    for key, values in by_key.items():
        having = grouped(zip(map(shown, values), names, strict=True))
        parts.append(f"{key} is {' and '.join(f'{value} ({some(who, _NAMED)})' for value, who in having.items())}")
    return "; ".join(parts)


def shown(value: Any) -> str:
    """Return a value of a setting as YAML."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{shown(item)}' for key, item in sorted(value.items()))}}}"
    return str(value)


def assigned(settings: Mapping[str, Any]) -> str:
    """Return settings as rows name them, those of the method without its section: ``tau=0.5, train.lr=0.1``."""
    return ", ".join(f"{key.removeprefix('method.')}={shown(value)}" for key, value in settings.items())


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the settings in which runs differ, other than seed, method and the method's own settings.

    A setting that methods ask for counts if the experiments have it otherwise, too; values of a search do not count.
    """
    runs = [run.before_search for run in runs]
    plain = differences([run.plain_settings for run in runs])
    return {key: values for key, values in differences([run.group_settings for run in runs]).items() if key in plain}


def group_labels(runs: Sequence[Run], keys: Iterable[str]) -> list[str]:
    """Return the group of each run, named by the settings in which groups differ; empty if they do not."""
    keys = list(keys)
    plain = [run.before_search.plain_settings for run in runs]
    return [", ".join(f"{key}={shown(settings.get(key))}" for key in keys) for settings in plain]


def unlike(runs: Iterable[Run]) -> list[str]:
    """Return a line for each difference in images, with the runs; none if all runs agree.

    Images agree if each domain and split has one SHA-256, and in each seed the nodes hold the same numbers by class.
    """
    runs = list(runs)
    members = grouped(
        ((run.results.seed, run.images_divided, run.images_read, run.config[NODES], tuple(sorted(run.only))), run)
        for run in runs
    )
    counts = [
        f"seed {seed}: the nodes hold other images in {some([run.name for run in same], _NAMED)}"
        for (seed, *_), same in members.items()
        if len({run.images_held for run in same}) > 1
    ]
    return [*_other_hashes(runs), *counts]


def _other_hashes(runs: Sequence[Run]) -> list[str]:
    """Return a line for each group of domains and splits whose images have other hashes."""
    hashes = grouped(
        ((run.images_read, f"{domain} {split}"), (digest, run.name))
        for run in runs
        for domain, by_split in run.images.items()
        for split, digest in by_split.items()
    )
    splits = grouped(  # those that differ alike stand in one line
        (some([some(names, _NAMED) for names in versions.values()], _VERSIONS, " as in "), split)
        for (_, split), digests in hashes.items()
        if len(versions := grouped(digests)) > 1
    )
    return [
        f"the images of {some(list(dict.fromkeys(which)), _SPLITS)} are not the same in {versions}"
        for versions, which in splits.items()
    ]


def surroundings(runs: Sequence[Run]) -> list[str]:
    """Return warnings on engine, versions and source that are not the same."""
    warnings = []
    for key in sorted({key for run in runs for key in run.surroundings}):
        using = [run for run in runs if key in run.surroundings or not key.startswith("plugin ")]
        values = [run.surroundings.get(key, UNKNOWN) for run in using]
        if vary(values):
            warnings.append(f"not the same {key}: {line({key: values}, [run.name for run in using])}")
    return warnings


def same_weights(runs: Sequence[Run], labels: Sequence[str]) -> list[str]:
    """Return a warning for rows that ended with equal weights: one of them may do nothing.

    Of nodes' own models the shared weights may be equal while their scores are not.
    """
    ends = [
        (of.seed, of.weights_sha256, of.evaluated, "" if of.evaluated == "global model" else repr(of.domains))
        for of in (run.results for run in runs)
    ]
    return [
        f"{' and '.join(rows)} ended with the same weights (seed {seed}): does one do nothing?"
        for (seed, *_), same in grouped(zip(ends, labels, strict=True)).items()
        if len(rows := list(dict.fromkeys(same))) > 1
    ]
