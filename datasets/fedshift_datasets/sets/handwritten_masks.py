"""The embedded data set with masks: the pictures of `handwritten`, whose digits are known to the pixel.

A mask covers what somebody would outline as digit: where the ink in sight is at least 0.4, the level at which `sketch`
puts its outline. So a sketched digit is the region within its outline, not the pencil's line, and in `street` the edges
of neighbouring digits are digit too. Blur and noise move no mask.
"""

from functools import partial

import numpy as np

from fedshift_datasets.base import Dataset, ImageSet, Source, Split
from fedshift_datasets.io.trees import find_plain
from fedshift_datasets.listing import Arrays, ImageFiles, main_class
from fedshift_datasets.sets.handwritten import DOMAINS, drawn
from fedshift_datasets.sets.handwritten_styles import SIZE, SKETCH_LEVEL

TITLE = "The pictures of handwritten, with masks of their digits, embedded"
CLASSES = ("background", "digit")


def draw(domain: str, split: Split, seed: int) -> ImageSet:
    """Draw one domain and split, with masks; see :func:`fedshift_datasets.sets.handwritten.drawn`.

    Raises:
        DataError: If there is no such domain.
    """
    digits, _ = drawn(domain, split, seed)
    masks = (digits.ink >= SKETCH_LEVEL).astype(np.uint8)
    return ImageSet(digits.pixels, main_class(masks, len(CLASSES)), masks=masks)


def find(domain: str, split: Split, source: Source) -> ImageFiles:
    """Find one domain and split: what draws it from the seed, or the files in ``source.data_dir``.

    Raises:
        DataError: If there is no such domain, or the folder does not have it.
    """
    if source.data_dir is None:
        return Arrays((), partial(draw, domain, split, source.seed))
    return find_plain(source.data_dir, domain, split, CLASSES, masks=True)


DATASET = Dataset("handwritten-masks", TITLE, DOMAINS, CLASSES, SIZE, find, masked=(True,))
