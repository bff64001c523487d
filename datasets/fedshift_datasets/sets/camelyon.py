"""Data set `camelyon17`: patches of lymph nodes from five hospitals, as WILDS publishes them.

| | |
|---|---|
| source | Bandi et al., From Detection of Individual Metastases to Classification of Lymph Node Status at the Patient Level, IEEE TMI 2018; Koh et al., WILDS, ICML 2021 |
| domains | hospital0 to hospital4: the column `center` of metadata.csv |
| classes | normal, tumor: the column `tumor` |
| split | the official one: of hospitals 0, 3 and 4 the column `split`, 0 for train and 1 for test (WILDS' validation in the distribution); hospital1 (WILDS' validation) and hospital2 (its test) are test sets as a whole |
| licence | CC0 |

Layout; the folder `camelyon17_v1.0/` may be left out:

| layout under data-dir | content |
|---|---|
| `[camelyon17_v1.0/]metadata.csv` | columns patient, node, x_coord, y_coord, tumor, center, split; others are ignored |
| `[camelyon17_v1.0/]patches/patient_P_node_N/patch_patient_P_node_N_x_X_y_Y.png` | 96 x 96 pixels |
"""  # noqa: E501

from collections.abc import Mapping

from fedshift_core.limits import as_found
from fedshift_datasets.base import Dataset, Split
from fedshift_datasets.io import table
from fedshift_datasets.io.trees import Tree

NAME = "camelyon17"
TITLE = "Camelyon17 of WILDS: patches of lymph nodes from five hospitals, with tumour or without"
DOMAINS = tuple(f"hospital{center}" for center in range(5))
CLASSES = ("normal", "tumor")
#: Hospitals that the official split does not train on: WILDS' validation and test.
TEST_ONLY = frozenset({"hospital1", "hospital2"})

_SPLITS: dict[str, Split] = {"0": "train", "1": "test"}


def _row(line: int, cells: Mapping[str, str]) -> table.Row:
    center, tumor, split = cells["center"], cells["tumor"], cells["split"]
    domain = f"hospital{center}"
    if domain not in DOMAINS or tumor not in ("0", "1") or split not in _SPLITS:
        raise ValueError(
            f"center {as_found(center)}, tumor {as_found(tumor)}, split {as_found(split)}; allowed are 0 to 4, 0 or 1, "
            "0 or 1"
        )
    whose = f"patient_{cells['patient']}_node_{cells['node']}"
    file = f"patches/{whose}/patch_{whose}_x_{cells['x_coord']}_y_{cells['y_coord']}.png"
    split_of = "test" if domain in TEST_ONLY else _SPLITS[split]
    return table.Row(line, file, CLASSES[int(tumor)], domain, split_of, cells["patient"])


TREE = Tree(
    NAME,
    DOMAINS,
    CLASSES,
    "[camelyon17_v1.0/]metadata.csv",
    levels=(("camelyon17_v1.0",),),
    tables=("metadata.csv",),
    columns=("patient", "node", "x_coord", "y_coord", "tumor", "center", "split"),
    row=_row,
)
DATASET = Dataset(NAME, TITLE, DOMAINS, CLASSES, 96, TREE.find, test_only=TEST_ONLY)
