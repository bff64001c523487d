"""The server's part in segmentation: the figures of sites, checked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedshift_app.features import records
from fedshift_app.features.site_figures import due
from fedshift_app.features.site_figures.server import SiteFigures
from fedshift_app.tasks.segmentation import ASK, NUMBERS, RECORD
from fedshift_app.tasks.segmentation.figures import ABSENT, METRICS, PARTS
from fedshift_app.tasks.segmentation.show import KEY
from fedshift_core.limits import Refused
from fedshift_strategies.features.base import Node
from fedshift_strategies.federation.evaluation import Answer

#: What each part of a figure may be besides ``ABSENT``: the Hausdorff distance alone may be above 1.
MOST = 1 + 1e-9


class Masks(SiteFigures):
    """Asks nodes for figures of their test images' masks."""

    ask, record, key = ASK, RECORD, KEY

    def describe(self, nodes: Sequence[Node]) -> Iterable[str]:
        """Say what is learnt and how an image is scored."""
        options = self.run.config.segmentation
        yield (
            f"task=segmentation: loss {options.ce:g} cross-entropy + {options.dice:g} soft Dice; accuracies are the "
            "mean Dice of images over the classes besides the background"
        )

    def is_due(self, server_round: int) -> bool:
        """Tell whether the run has figures of masks after a round."""
        return due(self.run.config, server_round)

    def numbers(self, content: RecordDict, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Return by domain the figures of a reply, (4, C - 1, 5).

        Raises:
            Refused: If a name, shape, type or number is not what it should be.
        """
        shape = (len(METRICS), self.run.num_classes - 1, len(PARTS))
        firsts = {answer.part.domain: answer for answer in answers if answer.part.start == 0}
        wanted = {domain: {NUMBERS + domain: (shape, np.float64)} for domain in firsts}
        numbers = {
            domain: arrays[NUMBERS + domain] for domain, arrays in records.read(content, self.record, wanted).items()
        }
        for domain, of_site in numbers.items():
            _check(of_site, firsts[domain].part.drawn, domain)
        return numbers


def _check(numbers: np.ndarray[Any, Any], images: int, domain: str) -> None:
    known = numbers != ABSENT
    if not np.isfinite(numbers).all() or (known & (numbers < 0)).any():
        raise Refused(f"figures of masks of {domain!r} hold numbers below 0, or that are not finite")
    shares = [METRICS.index(name) for name in METRICS if name != "hd95"]
    if (numbers[shares, :, 0] > MOST).any():
        raise Refused(f"figures of masks of {domain!r} hold shares above 1")
    if (numbers[..., 3] > images).any() or (numbers[..., 4] > numbers[..., 3]).any():
        raise Refused(f"figures of masks of {domain!r} are of more images or patients than the {images} asked for")
