"""Data set `vlcs`: five classes of four collections of photographs.

| | |
|---|---|
| source | Torralba and Efros, Unbiased Look at Dataset Bias, CVPR 2011; Fang et al., Unbiased Metric Learning, ICCV 2013 |
| domains | caltech (Caltech-101), labelme (LabelMe), pascal (VOC 2007), sun (SUN09) |
| classes | bird, car, chair, dog, person (labels 0 to 4) |
| published counts | 1,415 caltech, 2,656 labelme, 3,376 pascal, 3,282 sun; 10,729 together |
| split | 70 % train, 30 % test: test 424, 797, 1,013, 985 |
| licence | none given for the collection; those of the four sources, research use |

Layouts; letter case does not matter:

| layout under data-dir | train | test |
|---|---|---|
| `[VLCS/]<domain>/{train,crossval,test}/<class>/*` | train and crossval | test |
| `[VLCS/]<domain>/full/<class>/*` (only where there is neither train nor test) | 70 % | 30 % |
| `[VLCS/]<domain>/<class>/*` | 70 % | 30 % |

Domain folders are called as above, or `Caltech101`, `VOC2007`, `SUN09`; class folders by name or by
their numbers 0 to 4. Where the split is made here, test images are those spread evenly over the list
by class and file name, so that every class is in both parts.
"""  # noqa: E501

from pathlib import Path

import numpy as np

from datasets.base import Source, Split
from datasets.io import trees
from datasets.listing import Listing
from fedshift_core.errors import DataError
from fedshift_core.limits import shown

NAME = "vlcs"
TITLE = "VLCS: photographs of Caltech-101, LabelMe, PASCAL VOC and SUN09, 5 classes"
DOMAINS = ("caltech", "labelme", "pascal", "sun")
CLASSES = ("bird", "car", "chair", "dog", "person")
#: Published number of images by domain and class.
CLASS_COUNTS = {
    "caltech": dict(zip(CLASSES, (237, 123, 118, 67, 870), strict=True)),
    "labelme": dict(zip(CLASSES, (80, 1209, 89, 43, 1235), strict=True)),
    "pascal": dict(zip(CLASSES, (330, 699, 428, 420, 1499), strict=True)),
    "sun": dict(zip(CLASSES, (21, 933, 1036, 31, 1261), strict=True)),
}
COUNTS = {domain: sum(counts.values()) for domain, counts in CLASS_COUNTS.items()}

_FOLDERS = {
    "caltech": ("caltech", "caltech101"),
    "labelme": ("labelme",),
    "pascal": ("pascal", "voc2007"),
    "sun": ("sun", "sun09"),
}
_NUMBERS = {str(label): name for label, name in enumerate(CLASSES)}
_LAYOUTS = "[VLCS/]<domain>/<class>/ or [VLCS/]<domain>/{train,crossval,test,full}/<class>/"


def find(domain: str, split: Split, source: Source) -> Listing:
    """List one domain and split of VLCS.

    Args:
        domain: One of :data:`DOMAINS`.
        split: Which split.
        source: Where the images are.

    Raises:
        DataError: If the domain is unknown, absent or incomplete.
    """
    place = trees.locate(NAME, domain, source, domains=DOMAINS, finder=_place, layouts=_LAYOUTS)
    parts = {path.name.lower(): path for path in trees.children(place, ("train", "crossval", "test", "full"))}
    if not parts.keys() & {"train", "test"}:
        return split_70_30(_list(parts.get("full", place)), split)
    if split not in parts:
        raise DataError(f"{shown(place)}: no folder {split}, only {', '.join(parts)}; expected both train and test")
    if split == "test" or "crossval" not in parts:
        return _list(parts[split])
    return _joined(_list(parts["train"]), _list(parts["crossval"], complete=False))


def _place(root: Path, domain: str) -> Path | None:
    bases = trees.places(root, ("vlcs",))
    return next((path for base in bases for path in trees.children(base, _FOLDERS[domain]) if path.is_dir()), None)


def _list(folder: Path, *, complete: bool = True) -> Listing:
    return trees.list_folders(folder, CLASSES, aliases=_NUMBERS, complete=complete)


def _joined(first: Listing, second: Listing) -> Listing:
    """Return both listings as one, by class."""
    both = Listing(first.items + second.items, np.concatenate([first.labels, second.labels]))
    return both.select(np.argsort(both.labels, kind="stable"))


def split_70_30(whole: Listing, split: Split) -> Listing:
    """Return 70 % or 30 % of a domain, the test images spread evenly over the list.

    Their number is 0.3 N rounded to the nearest, a half downwards: what the published numbers follow.
    """
    count = (3 * len(whole) + 4) // 10
    test = np.zeros(len(whole), bool)
    test[np.arange(1, count + 1) * len(whole) // max(count, 1) - 1] = True
    return whole.select(np.flatnonzero(test if split == "test" else ~test))
