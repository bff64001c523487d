"""Checks that runs used the same images, by the SHA-256 of each domain and split.

A hash covers all decoded images of a domain and split with their labels, not only those that a seed draws for a node.
So runs of all seeds and methods must agree on each hash, whatever part of the images they train on. Runs without hashes
(real nodes, images drawn by a seed, files kept by an earlier version) are accepted.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedshift.lab.tables.results.loading import READ_ALIKE, Run, read_config
from fedshift.lab.tables.results.settings import NODES
from fedshift_core.limits import some

#: Text in place of a difference between rows with other images.
OTHER_IMAGES = "other images"
#: Marks the number of seeds of a row whose runs have different images.
MARK = "†"
#: Numbers of splits, versions and runs per version that a line names; the rest is counted.
_MOST_SPLITS, _MOST_VERSIONS, _MOST_RUNS = 4, 3, 2


def unlike(runs: Iterable[Run]) -> list[str]:
    """Return a line for each difference in images, with the runs; none if all runs agree.

    Args:
        runs: Runs; of joined runs (``compare.leave_one_out``) the parts are checked.
    """
    flat = [part for run in runs for part in run.singles]
    named = [(run.name, run.images, run.images_read) for run in flat]
    return [*_other_hashes(named), *_other_counts(flat)]


def unlike_folders(folders: Iterable[Path]) -> list[str]:
    """Return the same lines for run folders, finished or not.

    Raises:
        ConfigError: If a folder has a file that no run writes.
    """
    named = []
    for folder in folders:
        config = read_config(folder)
        dataset = config["resolved"].get("dataset")
        settings = dataset if isinstance(dataset, Mapping) else {}
        reading = {key: value for key, value in settings.items() if f"dataset.{key}" not in READ_ALIKE}
        named.append((folder.name, config.get("images") or {}, repr(reading)))
    return _other_hashes(named)


def _other_hashes(runs: Sequence[tuple[str, Mapping[str, Mapping[str, str]], str]]) -> list[str]:
    """Return a line for each group of hashes that differ.

    Args:
        runs: Name, hash by domain and split, and reading settings. Only runs with equal reading settings are compared.
    """
    names: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, images, reading in runs:
        for domain, by_split in images.items():
            for split, digest in by_split.items():
                names.setdefault((reading, f"{domain} {split}"), {}).setdefault(digest, []).append(name)
    splits: dict[tuple[tuple[str, ...], ...], list[str]] = {}  # those that differ alike stand in one line
    for (_, split), by_digest in names.items():
        if len(by_digest) > 1:
            splits.setdefault(tuple(map(tuple, by_digest.values())), []).append(split)
    return [
        f"the images of {some(list(dict.fromkeys(differ)), _MOST_SPLITS)} are not the same in "
        + some([some(list(version), _MOST_RUNS) for version in versions], _MOST_VERSIONS, " as in ")
        for versions, differ in splits.items()
    ]


def _other_counts(runs: Sequence[Run]) -> list[str]:
    """Return a line for each seed in which nodes hold different numbers of images by class.

    Only runs with the same settings of the partition are compared.
    """
    members: dict[tuple[int, object], list[Run]] = {}
    for run in runs:
        settings = run.images_divided, run.images_read, run.config[NODES]
        members.setdefault((run.results.seed, settings), []).append(run)
    return [
        f"seed {seed}: the nodes hold other images in {some([run.name for run in same], _MOST_RUNS)}"
        for (seed, _), same in members.items()
        if len({run.images_held for run in same}) > 1
    ]
