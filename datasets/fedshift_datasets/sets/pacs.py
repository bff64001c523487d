"""Data set `pacs`: photos, paintings, cartoons and sketches of seven classes.

| | |
|---|---|
| source | Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017 |
| domains | photo, art_painting, cartoon, sketch |
| classes | dog, elephant, giraffe, guitar, horse, house, person (labels 0 to 6) |
| published counts | 1,670 photo, 2,048 art_painting, 2,344 cartoon, 3,929 sketch; 9,991 together |
| split | not published; of each domain's sorted list the indices i with i mod 10 in 8, 9 are test (F2DC's code): 334, 408, 468, 785 |
| licence | none given; research use |

Layouts, the first that is there; `PACS/` and `kfold/` may be left out, letter case does not matter:

| layout under data-dir | content |
|---|---|
| `[PACS/][kfold/]<domain>/<class>/*` | image files |
| `[PACS/][kfold/]<domain>.tar` | uncompressed, members `<domain>/<class>/<file>` |
"""  # noqa: E501

from fedshift_datasets.base import Dataset
from fedshift_datasets.io.trees import Tree

NAME = "pacs"
TITLE = "PACS: photos, art paintings, cartoons and sketches, 7 classes"
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
#: Published number of images by domain, of each class.
CLASS_COUNTS = {
    "photo": (189, 202, 182, 186, 199, 280, 432),
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "sketch": (772, 740, 753, 608, 816, 80, 160),
}
COUNTS = {domain: sum(counts) for domain, counts in CLASS_COUNTS.items()}

TREE = Tree(
    NAME,
    DOMAINS,
    CLASSES,
    "[PACS/][kfold/]<domain>/<class>/ or [PACS/][kfold/]<domain>.tar",
    levels=(("pacs",), ("kfold",)),
    archives=(".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"),  # the compressed ones to say that they are
)
DATASET = Dataset(NAME, TITLE, DOMAINS, CLASSES, 128, TREE.find, COUNTS)
