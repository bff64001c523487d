"""The embedded data set: real handwritten digits drawn in four styles, made offline.

The 1,797 digits of 8 x 8 pixels that scikit-learn ships are dealt out to four domains, so that no
digit is used twice; each domain then draws its own digits in its own style.

`handwritten-masks` has the same pictures with masks. A mask covers what somebody would outline as digit: where the ink
in sight is at least 0.4, the level at which `sketch` puts its outline. So a sketched digit is the region within its
outline, not the pencil's line, and in `street` the edges of neighbouring digits are digit too. Blur and noise move no
mask.
"""

import gzip
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.seeding import generator
from fedshift_datasets.arrays import Floats, Indices, Reals
from fedshift_datasets.base import SPLITS, Dataset, ImageSet, Source, Split
from fedshift_datasets.io.trees import find_plain
from fedshift_datasets.listing import Arrays, ImageFiles, main_class
from fedshift_datasets.sets.handwritten_styles import RENDERERS, SIZE, SKETCH_LEVEL, upsample

TITLE = "1,797 real handwritten digits in four styles (scan, texture, street, sketch), embedded"
DOMAINS = tuple(RENDERERS)
CLASSES, OF_MASKS = tuple("0123456789"), ("background", "digit")
TEST_SHARE = 0.2

INK_MAX = 16.0


def _table() -> Reals:
    """Return scikit-learn's digits: a row of 64 pixels and the label for each, (1797, 65).

    Its file is read without importing it, which takes two seconds; where the file is elsewhere, scikit-learn reads it.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or []:
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                return np.loadtxt(lines, delimiter=",")
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


@cache
def _digits() -> tuple[Floats, Indices]:
    """Return all source digits: ink of shape (1797, 8, 8) in 0..1 and labels of shape (1797,)."""
    table = _table()
    ink = (table[:, :-1].reshape(-1, 8, 8) / INK_MAX).astype(np.float32)
    labels = table[:, -1].astype(np.int64)
    ink.flags.writeable = labels.flags.writeable = False
    return ink, labels


def source_indices(seed: int) -> dict[tuple[str, Split], Indices]:
    """Deal all source digits out to the domains and splits, class by class.

    Args:
        seed: Seed of the draw, not negative.

    Returns:
        For every (domain, split) the numbers of its source digits, shape (n,), in shuffled order.
        No number is in two of them, and each of the 1,797 is in one.
    """
    _, labels = _digits()
    dealt: dict[tuple[str, Split], list[Indices]] = {(d, s): [] for d in DOMAINS for s in SPLITS}
    for label in range(len(CLASSES)):
        own = generator(seed, "handwritten-deal", label).permutation(np.flatnonzero(labels == label))
        # The first parts of an uneven division are longer; turning gives each domain its share of them.
        turned = np.roll(np.arange(len(DOMAINS)), label)
        for place, part in zip(turned, np.array_split(own, len(DOMAINS)), strict=True):
            tests = round(TEST_SHARE * len(part))
            dealt[DOMAINS[place], "test"].append(part[:tests])
            dealt[DOMAINS[place], "train"].append(part[tests:])
    return {key: _stream(seed, "handwritten-order", *key).permutation(np.concatenate(v)) for key, v in dealt.items()}


def _stream(seed: int, purpose: str, domain: str, split: Split) -> np.random.Generator:
    return generator(seed, purpose, DOMAINS.index(domain), SPLITS.index(split))


def draw(domain: str, split: Split, seed: int, *, masks: bool = False) -> ImageSet:
    """Draw one domain and split, in shuffled order.

    Args:
        domain: One of ``DOMAINS``.
        split: Which part.
        seed: Decides the images.
        masks: With masks, in place of the digits' labels.

    Raises:
        DataError: If there is no such domain.
    """
    if domain not in RENDERERS:
        raise DataError(f"handwritten has no domain {domain!r}, allowed are {', '.join(DOMAINS)}")
    ink, labels = _digits()
    index = source_indices(seed)[domain, split]
    digits = RENDERERS[domain](upsample(ink[index]), _stream(seed, "handwritten-draw", domain, split))
    if not masks:
        return ImageSet(digits.pixels, labels[index])
    outlines = (digits.ink >= SKETCH_LEVEL).astype(np.uint8)
    return ImageSet(digits.pixels, main_class(outlines, len(OF_MASKS)), masks=outlines)


def find(domain: str, split: Split, source: Source, *, masks: bool = False) -> ImageFiles:
    """Find one domain and split: what draws it from the seed, or the files in ``source.data_dir``.

    Raises:
        DataError: If there is no such domain, or the folder does not have it.
    """
    if source.data_dir is None:
        return Arrays((), partial(draw, domain, split, source.seed, masks=masks))
    return find_plain(source.data_dir, domain, split, OF_MASKS if masks else CLASSES, masks=masks)


DATASET = Dataset("handwritten", TITLE, DOMAINS, CLASSES, SIZE, find)
MASKED = Dataset(
    "handwritten-masks",
    "The pictures of handwritten, with masks of their digits, embedded",
    DOMAINS,
    OF_MASKS,
    SIZE,
    partial(find, masks=True),
    masked=(True,),
)
