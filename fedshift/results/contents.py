"""Whether runs were made on the same images: the SHA-256 of each domain and split, compared over all runs of a table.

A hash is of all images of a domain and split as they are decoded, with their labels: not of those that a seed draws for
a node. So runs of all seeds and methods must agree on each, whatever part of it they train on. Runs that say nothing
(real nodes, images that are drawn by a seed, files that an earlier version kept) are taken as they are.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedshift.results.loading import NODES, Run, read_config

#: In place of a difference between rows of other images.
OTHER_IMAGES = "other images"
#: Marks the number of seeds of a row whose runs are of other images than one another.
MARK = "†"
#: Settings of the section ``dataset`` that do not decide what a domain's images are, once they are read.
_ASIDE = ("dataset.data_dir", "dataset.download", "dataset.domains", "dataset.public")
#: Sections that decide which images of a domain a node holds; the seed and the number of nodes do so, too.
_DIVIDING = ("allocation.", "shift.")
#: So many domains and splits, versions of them, and runs of each, are named in a line; of others their number.
_MOST_SPLITS, _MOST_VERSIONS, _MOST_RUNS = 4, 3, 2


def unlike(runs: Iterable[Run]) -> list[str]:
    """Return which images are not the same in all runs, and in which runs, line by line; none if all agree.

    Args:
        runs: Runs; of those that stand for several (``comparing.unseen``) their parts count.
    """
    flat = [part for run in runs for part in (run.parts or (run,))]
    named = [(run.name, run.images, repr(_reading(run))) for run in flat]
    return [*_other_hashes(named), *_other_counts(flat)]


def unlike_folders(folders: Iterable[Path]) -> list[str]:
    """Return the same of run folders, finished or not.

    Raises:
        ConfigError: If a file of one is not what a run writes.
    """
    named = []
    for folder in folders:
        config = read_config(folder)
        dataset = config["resolved"].get("dataset")
        settings = dataset if isinstance(dataset, Mapping) else {}
        reading = {key: value for key, value in settings.items() if f"dataset.{key}" not in _ASIDE}
        named.append((folder.name, config.get("images") or {}, repr(reading)))
    return _other_hashes(named)


def _other_hashes(runs: Sequence[tuple[str, Mapping[str, Mapping[str, str]], str]]) -> list[str]:
    """Return which hashes are not the same.

    Args:
        runs: Name, hash by domain and split, and how images are read: of runs that read them otherwise nothing follows.
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
        f"the images of {_some(list(dict.fromkeys(differ)), _MOST_SPLITS)} are not the same in "
        + _some([_some(list(version), _MOST_RUNS) for version in versions], _MOST_VERSIONS, " as in ")
        for versions, differ in splits.items()
    ]


def _other_counts(runs: Sequence[Run]) -> list[str]:
    """Return the seeds in which nodes hold other images by their numbers of each class, where they should not."""
    members: dict[tuple[int, str], list[Run]] = {}
    for run in runs:
        dividing = {key: value for key, value in run.config.items() if key.startswith(_DIVIDING)}
        settings = [*dividing.items(), *_reading(run).items(), (NODES, run.config[NODES])]
        members.setdefault((run.results.seed, repr(settings)), []).append(run)
    return [
        f"seed {seed}: the nodes hold other images in {_some([run.name for run in same], _MOST_RUNS)}"
        for (seed, _), same in members.items()
        if len({_counts(run) for run in same}) > 1
    ]


def _counts(run: Run) -> str:
    """Return what the nodes hold, whichever of them came first."""
    return repr(sorted(repr((node.get("domain"), node.get("class_counts"))) for node in run.results.nodes))


def _reading(run: Run) -> dict[str, Any]:
    """Return the settings that decide what the images of a domain and split are."""
    return {key: value for key, value in run.config.items() if key.startswith("dataset.") and key not in _ASIDE}


def _some(names: Sequence[str], most: int, separator: str = ", ") -> str:
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more} more" if more > 0 else "")
