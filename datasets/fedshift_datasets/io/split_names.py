"""Recognizes the usual spellings of a split: names of folders and npz files, and the column split of a table."""

import re

from fedshift_core import same_names
from fedshift_datasets.base import OWN_SPLITS, Split

_WORDS: dict[str, Split] = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "validate", "validating"), "validation"),
    **dict.fromkeys(("dev", "devel", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "tests", "tst"), "test"),
}
#: Words that may accompany it: ``train_set``, ``images-test``, ``validation data``.
_FILLERS = frozenset({"set", "sets", "split", "data", "dataset", "images", "image", "imgs", "img", "folder", "part"})
_JOINED = ("set", "split", "data", "images", "imgs")  # trainset, testdata
_YEAR = re.compile(r"(?:19|20)\d\d")  # train2017
_APART = re.compile(r"[\s._-]+")

#: For messages.
USUAL = f"{', '.join(OWN_SPLITS)} and their usual spellings (Training, val, valid, dev, test_set, ...)"


def split_of(name: str) -> Split | None:
    """Return the split of a usual spelling in any letter case; None for other names."""
    words = [word for word in _APART.split(_YEAR.sub("", same_names.key(name))) if word]
    words = [word for word in words if word not in _FILLERS]
    if len(words) != 1:
        return None
    return _WORDS.get(words[0]) or next(
        (_WORDS[start] for end in _JOINED if (start := words[0].removesuffix(end)) != words[0] and start in _WORDS),
        None,
    )


def named(stem: str) -> tuple[str, Split] | None:
    """Return the site and the split in the stem of an npz file: ``<site>_<split>``."""
    site, _, last = stem.rpartition("_")
    if site and last in OWN_SPLITS:
        return site, _WORDS[last]
    for place, letter in enumerate(stem):
        if letter == "_" and place and (split := split_of(stem[place + 1 :])):
            return stem[:place], split
    return None
