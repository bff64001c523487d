"""Data set `office-caltech10`: the ten classes that Office-31 and Caltech-256 share.

| | |
|---|---|
| source | Gong et al., Geodesic Flow Kernel for Unsupervised Domain Adaptation, CVPR 2012; images of Office-31 (Saenko et al., ECCV 2010) and Caltech-256 (Griffin et al., 2007) |
| domains | caltech, amazon, webcam, dslr |
| classes | back_pack, bike, calculator, headphones, keyboard, laptop_computer, monitor, mouse, mug, projector (labels 0 to 9) |
| published counts | 1,123 caltech, 958 amazon, 295 webcam, 157 dslr; 2,533 together |
| split | not published; of each domain's list by class and file name the indices i with i mod 10 in 8, 9 are test (F2DC's code): 224, 190, 58, 30 |
| licence | Office-31: none given, research use; Caltech-256: CC BY 4.0 |

Layouts, the first that is there; letter case does not matter:

| layout under data-dir | content |
|---|---|
| `[office_caltech_10/]<domain>/<class>/*` | image files; the folder may also be called as in :data:`TOPS` |
| `[office_caltech_10/]<domain>/images/<class>/*` | Office-31 as published; its 21 other classes are passed over |

Class folders are called as in Office-31, or as in Caltech-256 and Office-Caltech (`backpack`,
`touring-bike`, `head-phones`, `computer-keyboard`, `laptop-101`, `computer-monitor`,
`computer-mouse`, `coffee-mug`, `video-projector`), with or without Caltech-256's number (`003.backpack`).

FedBN's own split of the same images (test 225, 192, 59, 32) comes as pickles, which are never read.
"""  # noqa: E501

from fedshift_datasets.base import Dataset
from fedshift_datasets.io.trees import Tree

NAME = "office-caltech10"
TITLE = "Office-Caltech-10: objects in Caltech-256, Amazon, webcam and DSLR pictures, 10 classes"
DOMAINS = ("caltech", "amazon", "webcam", "dslr")
#: Classes, each with further names of its folder.
_NAMES = """
    back_pack backpack 003.backpack
    bike touring-bike 224.touring-bike
    calculator 027.calculator
    headphones headphone head-phones 101.head-phones
    keyboard computer-keyboard 045.computer-keyboard
    laptop_computer laptop laptop-101 127.laptop-101
    monitor computer-monitor 046.computer-monitor
    mouse computer-mouse 047.computer-mouse
    mug coffee-mug 041.coffee-mug
    projector video-projector 238.video-projector
"""
ALIASES = {name: names[0] for line in _NAMES.strip().splitlines() for names in [line.split()] for name in names}
CLASSES = tuple(dict.fromkeys(ALIASES.values()))
#: Published number of images by domain, of each class.
CLASS_COUNTS = {
    "caltech": (151, 110, 100, 138, 85, 128, 133, 94, 87, 97),
    "amazon": (92, 82, 94, 99, 100, 100, 99, 100, 94, 98),
    "webcam": (29, 21, 31, 27, 27, 30, 43, 30, 27, 30),
    "dslr": (12, 21, 12, 13, 10, 24, 22, 12, 8, 23),
}
COUNTS = {domain: sum(counts) for domain, counts in CLASS_COUNTS.items()}
#: Names of a folder between data-dir and the domains.
TOPS = ("office_caltech_10", "office-caltech10", "office_caltech10", "office_caltech", "office-caltech", "office31")
_OTHERS = """
    bike_helmet bookcase bottle desk_chair desk_lamp desktop_computer file_cabinet letter_tray mobile_phone
    paper_notebook pen phone printer punchers ring_binder ruler scissors speaker stapler tape_dispenser trash_can
"""
#: Classes that Office-31 alone has.
OTHERS = frozenset(_OTHERS.split())

TREE = Tree(
    NAME,
    DOMAINS,
    CLASSES,
    f"[{TOPS[0]}/]<domain>/[images/]<class>/",
    levels=(TOPS,),
    inner=("images",),
    aliases=ALIASES,
    others=OTHERS,
)
DATASET = Dataset(NAME, TITLE, DOMAINS, CLASSES, 32, TREE.find, COUNTS)
