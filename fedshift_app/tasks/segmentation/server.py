"""The server's part in segmentation: the figures of sites, checked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import RecordDict

from fedshift_app.features import records
from fedshift_app.features.site_figures import due
from fedshift_app.features.site_figures.server import SiteFigures
from fedshift_app.tasks.segmentation import ASK, RECORD, UNITS, figures
from fedshift_app.tasks.segmentation.figures import ABSENT, METRICS, PARTS
from fedshift_app.tasks.segmentation.show import KEY
from fedshift_core.limits import Refused
from fedshift_strategies.features.base import Node
from fedshift_strategies.federation.evaluation import Answer

#: What each part of a figure may be besides ``ABSENT``: the Hausdorff distance alone may be above 1.
MOST = 1 + 1e-9


class OfSite(NamedTuple):
    """Figures of a site.

    Attributes:
        unit: Of distances, one of ``UNITS``.
        figures: (4, C - 1, 5), as :func:`fedshift_app.tasks.segmentation.figures.of_site` returns them.
    """

    unit: str
    figures: figures.Floats


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
        """Return by domain the figures of a reply.

        Raises:
            Refused: If a name, shape, type or number is not what it should be, or a domain has two units.
        """
        shape = (len(METRICS), self.run.num_classes - 1, len(PARTS))
        firsts = {answer.part.domain: answer for answer in answers if answer.part.start == 0}
        names = {start + domain: (unit, domain) for domain in firsts for unit, start in UNITS.items()}
        given = records.read(content, self.record, {name: {name: (shape, np.float64)} for name in names})
        numbers = dict[str, OfSite]()
        for name, arrays in given.items():
            unit, domain = names[name]
            if domain in numbers:
                raise Refused(f"figures of masks of {domain!r} are in pixels and in millimetres")
            _check(arrays[name], firsts[domain].part.drawn, domain)
            numbers[domain] = OfSite(unit, arrays[name])
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
