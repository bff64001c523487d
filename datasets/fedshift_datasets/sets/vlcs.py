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

import numpy as np

from fedshift_datasets.base import Dataset, Split
from fedshift_datasets.io.trees import Tree
from fedshift_datasets.listing import Listing

NAME = "vlcs"
TITLE = "VLCS: photographs of Caltech-101, LabelMe, PASCAL VOC and SUN09, 5 classes"
DOMAINS = ("caltech", "labelme", "pascal", "sun")
CLASSES = ("bird", "car", "chair", "dog", "person")
COUNTS = {"caltech": 1415, "labelme": 2656, "pascal": 3376, "sun": 3282}  # published


def split_70_30(whole: Listing, split: Split) -> Listing:
    """Return 70 % or 30 % of a domain, the test images spread evenly over the list.

    Their number is 0.3 N rounded to the nearest, a half downwards: what the published numbers follow.
    """
    count = (3 * len(whole) + 4) // 10
    test = np.zeros(len(whole), bool)
    test[np.arange(1, count + 1) * len(whole) // max(count, 1) - 1] = True
    return whole.select(np.flatnonzero(test if split == "test" else ~test))


TREE = Tree(
    NAME,
    DOMAINS,
    CLASSES,
    "[VLCS/]<domain>/<class>/ or [VLCS/]<domain>/{train,crossval,test,full}/<class>/",
    levels=(("vlcs",),),
    folders={"caltech": ("caltech", "caltech101"), "pascal": ("pascal", "voc2007"), "sun": ("sun", "sun09")},
    aliases={str(label): name for label, name in enumerate(CLASSES)},
    splits={"train": ("train", "crossval"), "test": ("test",)},
    whole="full",
    divide=split_70_30,
)
DATASET = Dataset(NAME, TITLE, DOMAINS, CLASSES, 32, TREE.find, COUNTS)
