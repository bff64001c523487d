"""Data set `fed-isic2019`: skin lesions from six sources, as FLamby divides them.

| | |
|---|---|
| source | Ogier du Terrail et al., FLamby, NeurIPS 2022; images of the ISIC 2019 challenge: BCN_20000 (Combalia et al., 2019), HAM10000 (Tschandl et al., 2018), MSK (Codella et al., 2017) |
| domains | bcn, vidir_molemax, vidir_modern, rosendahl, msk, vienna_dias: the column `center`, 0 to 5 |
| classes | MEL, NV, BCC, AK, BKL, DF, VASC, SCC: the column `target`, 0 to 7 |
| published counts | 12,413; 3,954; 3,363; 2,259; 819; 439 |
| split | FLamby's, the column `fold`: train 9,930, 3,163, 2,691, 1,807, 655, 351; test 2,483, 791, 672, 452, 164, 88 |
| licence | CC BY-NC 4.0 |

Layout:

| layout under data-dir | content |
|---|---|
| `train_test_split`, or with `.csv` | FLamby's table; columns image, target, center, fold |
| `ISIC_2019_Training_Input_preprocessed/IMAGE.jpg`, else `ISIC_2019_Training_Input/`, else in the table's folder | images |
"""  # noqa: E501

from collections.abc import Mapping

from fedshift_core.limits import as_found
from fedshift_datasets.base import SPLITS, Dataset
from fedshift_datasets.io import table
from fedshift_datasets.io.trees import Tree

NAME = "fed-isic2019"
TITLE = "Fed-ISIC2019 of FLamby: skin lesions from six sources, 8 classes"
DOMAINS = ("bcn", "vidir_molemax", "vidir_modern", "rosendahl", "msk", "vienna_dias")
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
COUNTS = dict(zip(DOMAINS, (12413, 3954, 3363, 2259, 819, 439), strict=True))


def _row(line: int, cells: Mapping[str, str]) -> table.Row:
    centers, targets = (list(map(str, range(len(names)))) for names in (DOMAINS, CLASSES))
    center, target, fold = cells["center"], cells["target"], cells["fold"]
    split = next((split for split in SPLITS if fold == split), None)
    if center not in centers or target not in targets or split is None:
        raise ValueError(
            f"center {as_found(center)}, target {as_found(target)}, fold {as_found(fold)}; allowed are 0 to 5, 0 to 7, "
            "train or test"
        )
    return table.Row(line, f"{cells['image']}.jpg", CLASSES[int(target)], DOMAINS[int(center)], split)


TREE = Tree(
    NAME,
    DOMAINS,
    CLASSES,
    "train_test_split or train_test_split.csv",
    tables=("train_test_split", "train_test_split.csv"),
    columns=("image", "target", "center", "fold"),
    row=_row,
    images=("ISIC_2019_Training_Input_preprocessed", "ISIC_2019_Training_Input"),
)
DATASET = Dataset(NAME, TITLE, DOMAINS, CLASSES, 224, TREE.find, COUNTS)
