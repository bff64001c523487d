"""Which test images the server asks a node to score, and what comes of it."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedshift_core import said_once
from fedshift_core.wire.names import DOMAINS, DRAWN, STARTS, STOPS
from fedshift_datasets.base import ImageSet

Order = Callable[[str], np.random.Generator]
BY_CLASS = 4.0  # times the images of one class in a row in a random order: from here on they come class by class


@dataclass(frozen=True)
class Scores:
    """How a model did on a set of images.

    Attributes:
        correct: Correct top-1 predictions; of other tasks the sum of the scores of images.
        loss_sum: Cross-entropy summed over the images.
        others: Correct predictions of the same images scored in another way, by its name.
        seen: What observers made of the images, by their name; those of several sets add up.
    """

    correct: float
    loss_sum: float
    others: Mapping[str, float] = field(default_factory=dict)
    seen: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __add__(self, other: "Scores") -> "Scores":
        """Return the scores of both sets together, without other ways."""
        seen = dict(self.seen)
        for name, made in other.seen.items():
            seen[name] = seen[name] + made if name in seen else made
        return Scores(self.correct + other.correct, self.loss_sum + other.loss_sum, seen=seen)


def most_loss(classes: int) -> float:
    """Return the most that the loss of an image counts in a sum that leaves an owner's node: twice that of a guess."""
    return 2 * math.log(classes)


def asked_images(
    test_set: Callable[[str], ImageSet], config: Mapping[str, Any], order: Order, *, mixed: bool = False
) -> Iterator[tuple[str, ImageSet]]:
    """Yield each domain that is asked for, with its test images to score.

    A sample of a test set depends on the seed (or the owner's secret), the domain and its size alone: it is the same in
    all rounds, and the nodes that share it out draw the same.

    Args:
        test_set: Gives the test images of a domain that the node sees.
        config: Holds ``domains`` and, where not all their images are asked for, ``drawn``, ``starts`` and ``stops``.
        order: Draws orders, by their purpose.
        mixed: In an order drawn from the seed, the domain and the size alone, not in that of the test set, which may
            go by class; parts are cut of that order.
    """
    for place, domain in enumerate(config[DOMAINS]):
        test = test_set(domain)
        cut = slice(config[STARTS][place], config[STOPS][place]) if STARTS in config else slice(None)
        drawn = config[DRAWN][place] if DRAWN in config else len(test)
        if not mixed and drawn >= len(test):
            yield domain, test.select(cut)
            continue
        chosen = order(f"test-sample-{domain}").permutation(len(test))[:drawn]
        yield domain, test.select((chosen if mixed else np.sort(chosen))[cut])


def mixed_images(images: ImageSet, order: np.random.Generator) -> ImageSet:
    """Return images in a drawn order, as listed ones may go by class."""
    return images.select(order.permutation(len(images)))


def warn_if_by_class(labels: NDArray[np.int64]) -> None:
    """Warn, once, of labels (N,) that come class by class, where a score depends on the order of test images.

    Labels of files do that are listed by their folders: a class is followed by itself for at least ``BY_CLASS`` times
    as long as in a random order.
    """
    if len(labels) == 0:
        return
    shares = np.bincount(labels) / len(labels)
    by_chance = 1 / max(1 - float(np.square(shares).sum()), 1 / len(labels))  # images, of a run in a random order
    runs = 1 + int(np.count_nonzero(np.diff(labels)))
    if len(labels) / runs >= BY_CLASS * by_chance:
        said_once.warn(
            "test images come class by class, and how one is scored depends on those before it: the score then says "
            "little of mixed images; adapt.order=shuffled (method.tta_order) mixes them"
        )
