"""Which numbers of images per class a node hides, so that no class of few images can be read or worked out.

A count below the least that may leave is hidden. As the node's total is known, the sum of what is hidden is known too:
one hidden class alone would be that sum. Further classes are therefore hidden with it until each class of few images
may still have any number from 1 to the least less one.

The rule is complementary suppression in a table with a known total: Willenborg & de Waal, "Elements of Statistical
Disclosure Control", 2001, chapter 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

FEW, HIDDEN = -1, -2  # in place of a count: fewer images than the least; hidden with those


@dataclass(frozen=True)
class _Sums:
    """What is known of hidden classes, besides that each of few images has 1 to ``least - 1``.

    Attributes:
        few: How many have few images.
        others: How many have at least ``least``.
        images: Of all of them together.
    """

    few: int
    others: int
    images: int

    def is_safe(self, least: int) -> bool:
        """Tell whether a class of few images may have one image as well as ``least - 1``."""
        rest = self.few - 1  # other classes of few images
        may_have_most = self.images - (least - 1) >= rest + self.others * least
        may_have_one = self.others > 0 or self.images - 1 <= rest * (least - 1)
        return may_have_most and may_have_one

    def with_class(self, images: int) -> "_Sums":
        return _Sums(self.few, self.others + 1, self.images + images)


def hide(counts: Sequence[int], least: int) -> tuple[int, ...]:
    """Return images per class with :data:`FEW` or :data:`HIDDEN` in place of what must not leave.

    Args:
        counts: Images per class, (C,); their sum is known.
        least: Least images behind a number that may leave; 1 hides nothing.
    """
    few = {k for k, number in enumerate(counts) if 0 < number < least}
    if not few:
        return tuple(counts)
    free = sorted((number, k) for k, number in enumerate(counts) if number >= least)
    sums, others = _Sums(len(few), 0, sum(counts[k] for k in few)), set[int]()
    while free and not sums.is_safe(least):
        # The smallest class that is enough; the largest where none is.
        place = next((i for i, (number, _) in enumerate(free) if sums.with_class(number).is_safe(least)), len(free) - 1)
        number, k = free.pop(place)
        sums = sums.with_class(number)
        others.add(k)
    if not sums.is_safe(least):  # all classes are hidden: which of them has few images is not said either
        others, few = others | few, set()
    return tuple(FEW if k in few else HIDDEN if k in others else number for k, number in enumerate(counts))


def hidden_classes(counts: Sequence[int], least: int) -> list[int]:
    """Return the classes that :func:`hide` hides."""
    return [k for k, number in enumerate(hide(counts, least)) if number < 0]


def shown(number: int, least: int) -> str:
    """Return a count for people: a number, ``<5``, or ``hidden``."""
    return f"<{least}" if number == FEW else "hidden" if number == HIDDEN else str(number)
