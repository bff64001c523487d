"""What a node says of its test images in figures with 95 % intervals, and how that travels. NumPy only.

No count of predictions travels, and nothing of a single image: docs/guide/figures.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedshift_core.arrays import Arrays
from fedshift_core.wire.names import SITE_COUNTS, SITE_MARKS, SITE_NUMBERS

#: Over all images; those of ``MACRO`` are means over the classes that have one.
OVERALL = ("accuracy", "balanced_accuracy", "auroc", "auprc", "brier", "ece")
MACRO = {"balanced_accuracy": "sensitivity", "auroc": "auroc", "auprc": "auprc"}
BY_CLASS = ("sensitivity", "specificity", "auroc", "auprc")
#: Marks of a figure: there is a number; there are too few images; the model's scores are not finite.
KNOWN, TOO_FEW, NOT_FINITE = 0, 1, 2
UNKNOWN = -1  # number of patients, or of images of a class
_HEAD = 2  # counts before those of classes

Ints = NDArray[np.int64]
Marks = NDArray[np.uint8]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class SiteNumbers:
    """Figures of the test images of one site, C classes.

    Attributes:
        images: Number of images.
        patients: Number of patients, or other groups; ``UNKNOWN`` where the site does not say.
        of_class: Images of each class, (C,); ``UNKNOWN`` where its figures do not leave the node.
        overall: Value, low and high of each of ``OVERALL``, (6, 3), from 0 to 1; 0 where there is none.
        by_class: Likewise of each of ``BY_CLASS``, (4, C, 3).
        overall_marks: (6,).
        by_class_marks: (4, C).
    """

    images: int
    patients: int
    of_class: Ints
    overall: Numbers
    by_class: Numbers
    overall_marks: Marks
    by_class_marks: Marks

    def macro_classes(self, name: str) -> int:
        """Return the number of classes behind one of ``MACRO``."""
        return int((self.by_class_marks[BY_CLASS.index(MACRO[name])] == KNOWN).sum())

    def arrays(self, domain: str) -> Arrays:
        """Return what travels, as ``shapes`` has it."""
        return {
            SITE_NUMBERS + domain: np.concatenate([self.overall, self.by_class.reshape(-1, 3)]),
            SITE_MARKS + domain: np.concatenate([self.overall_marks, self.by_class_marks.reshape(-1)]),
            SITE_COUNTS + domain: np.array([self.images, self.patients, *self.of_class], np.int64),
        }


def shapes(domain: str, classes: int) -> Mapping[str, tuple[tuple[int, ...], type[np.generic]]]:
    """Return shape and type by name of the arrays that travel of a domain."""
    figures = len(OVERALL) + len(BY_CLASS) * classes
    return {
        SITE_NUMBERS + domain: ((figures, 3), np.float64),
        SITE_MARKS + domain: ((figures,), np.uint8),
        SITE_COUNTS + domain: ((_HEAD + classes,), np.int64),
    }


def from_arrays(arrays: Arrays, domain: str) -> SiteNumbers:
    """Return what :meth:`SiteNumbers.arrays` wrote; names, shapes and numbers are the caller's to check."""
    numbers, marks = arrays[SITE_NUMBERS + domain].copy(), arrays[SITE_MARKS + domain].copy()
    images, patients, *of_class = arrays[SITE_COUNTS + domain].tolist()
    first, classes = len(OVERALL), len(of_class)
    return SiteNumbers(
        images,
        patients,
        np.array(of_class, np.int64),
        numbers[:first],
        numbers[first:].reshape(len(BY_CLASS), classes, 3),
        marks[:first],
        marks[first:].reshape(len(BY_CLASS), classes),
    )
