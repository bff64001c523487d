"""The usual spellings of a split, as names of folders, of npz files and in the column split of a table."""

import re

from datasets.base import OWN_SPLITS, Split
from fedshift_core import same_names

_WORDS: dict[str, Split] = {
    "train": "train", "training": "train", "trn": "train",
    "validation": "validation", "valid": "validation", "val": "validation", "validate": "validation",
    "validating": "validation", "dev": "validation", "devel": "validation", "development": "validation",
    "test": "test", "testing": "test", "tests": "test", "tst": "test",
}  # fmt: skip
#: What may stand with the word: ``train_set``, ``images-test``, ``validation data``.
_FILLERS = frozenset({"set", "sets", "split", "data", "dataset", "images", "image", "imgs", "img", "folder", "part"})
_JOINED = ("set", "split", "data", "images", "imgs")  # trainset, testdata
_YEAR = re.compile(r"(?:19|20)\d\d")  # train2017
_APART = re.compile(r"[\s._-]+")

#: For messages.
USUAL = f"{', '.join(OWN_SPLITS)} and their usual spellings (Training, val, valid, dev, test_set, ...)"


def split_of(name: str) -> Split | None:
    """Return the split that a name is a usual spelling of, None for any other name; letter case does not count."""
    words = [word for word in _APART.split(_YEAR.sub("", same_names.key(name))) if word]
    words = [word for word in words if word not in _FILLERS]
    if len(words) != 1:
        return None
    return _WORDS.get(words[0]) or next(
        (_WORDS[start] for end in _JOINED if (start := words[0].removesuffix(end)) != words[0] and start in _WORDS),
        None,
    )


def named(stem: str) -> tuple[str, Split] | None:
    """Return the site and the split that the name of an npz file without its suffix says: ``<site>_<split>``."""
    site, _, last = stem.rpartition("_")
    if site and last in OWN_SPLITS:
        return site, _WORDS[last]
    for place, letter in enumerate(stem):
        if letter == "_" and place and (split := split_of(stem[place + 1 :])):
            return stem[:place], split
    return None
