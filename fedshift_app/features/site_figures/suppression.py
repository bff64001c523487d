"""Says of which classes of test images a node tells nothing, so that none of few images can be read or worked out.

A count below the least that may leave is hidden. As the node's total is known, the sum of what is hidden is known too:
one hidden class alone would be that sum. Further classes are therefore hidden with it until each class of few images
may still have any number from 1 to the least less one.

Whoever reads the numbers knows this rule. So what it chooses depends on nothing but what is known afterwards: further
classes are taken in the order of their numbers, and whether they are enough depends on the sum of all hidden images.

The rule is complementary suppression in a table with a known total: Willenborg & de Waal, "Elements of Statistical
Disclosure Control", 2001, chapter 4.
"""

from collections.abc import Sequence

FEW, HIDDEN = -1, -2  # in place of a count: fewer images than the least; hidden with those


def hide(counts: Sequence[int], least: int) -> tuple[int, ...]:
    """Return images per class with :data:`FEW` or :data:`HIDDEN` in place of what must not leave.

    Args:
        counts: Images per class, (C,); their sum is known.
        least: Least images behind a number that may leave; 1 hides nothing.
    """
    few = {k for k, number in enumerate(counts) if 0 < number < least}
    if not few:
        return tuple(counts)
    if sum(counts) <= len(counts):  # each may have one image, so that classes without any are hidden as well
        return (HIDDEN,) * len(counts)
    images, others = sum(counts[k] for k in few), set[int]()
    for k, number in enumerate(counts):
        if _is_safe(images, len(few), len(others), least):
            break
        if number >= least:
            images += number
            others.add(k)
    if not _is_safe(images, len(few), len(others), least):  # which of all classes have few images is not said either
        others, few = others | few, set()
    return tuple(FEW if k in few else HIDDEN if k in others else number for k, number in enumerate(counts))


def _is_safe(images: int, few: int, others: int, least: int) -> bool:
    """Tell whether the sum of hidden images leaves each class of few images any number from 1 to ``least - 1``.

    It does with other classes where these have at least ``least`` each, whatever those of few images have, and with
    one image to spare: a smaller sum of the first of them may then have been too small, as the rule says.

    Args:
        images: Of all hidden classes together.
        few: How many of these classes have few images.
        others: How many have at least ``least``.
        least: Least images behind a number that may leave.
    """
    if others:
        return images > others * least + few * (least - 1)
    return few + least - 2 <= images <= (few - 1) * (least - 1) + 1
