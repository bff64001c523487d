"""The server's part in segmentation: a network that gives masks, and the figures of sites, checked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedshift_app.features import records
from fedshift_app.tasks.segmentation import ASK, NUMBERS, RECORD, due
from fedshift_app.tasks.segmentation.figures import ABSENT, METRICS, PARTS
from fedshift_app.tasks.segmentation.show import KEY, OfSite
from fedshift_core.errors import ConfigError
from fedshift_core.limits import Refused
from fedshift_strategies.features.base import Asked, Node, Scoring, ServerFeature, Steps
from fedshift_strategies.federation.evaluation import Answer

#: What each part of a figure may be besides ``ABSENT``: the Hausdorff distance alone may be above 1.
MOST = 1 + 1e-9


class Masks(ServerFeature):
    """Asks nodes for figures of their test images' masks."""

    def describe(self, nodes: Sequence[Node]) -> Iterable[str]:
        """Say what is learnt and how an image is scored.

        Raises:
            ConfigError: If the network, as the method has it, gives no class for each pixel.
        """
        options = self.run.config.segmentation
        check_network(self.run.config)
        yield (
            f"task=segmentation: loss {options.ce:g} cross-entropy + {options.dice:g} soft Dice; accuracies are the "
            "mean Dice of images over the classes besides the background"
        )

    def on_scores(self, scoring: Scoring) -> Steps:
        """Ask nodes for figures, and hand on those of all."""

        def asks() -> bool:
            return due(self.run.config, scoring.server_round) and scoring.evaluation.scores_tests

        yield Asked(lambda node: {ASK: True}, when=asks, reads=(RECORD,), read=self._read)
        if asks():
            each = [site for domain in self.run.domains for site in scoring.evaluation.extra(self.name, domain)]
            scoring.result.passing[KEY] = [site for site in each if site.numbers is not None]

    def _read(self, content: RecordDict, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Return the figures of each domain of which the node scored all images, or has the first part.

        Raises:
            Refused: If a name, shape, type or number is not what it should be.
        """
        shape = (len(METRICS), self.run.num_classes - 1, len(PARTS))
        firsts = {answer.part.domain: answer for answer in answers if answer.part.start == 0}
        wanted = {domain: {NUMBERS + domain: (shape, np.float64)} for domain in firsts}
        read = records.read(content, RECORD, wanted)
        for domain, arrays in read.items():
            _check(arrays[NUMBERS + domain], firsts[domain].part.drawn, domain)
        return {
            answer.part.domain: OfSite(
                answer.node.index,
                answer.part.domain,
                read.get(answer.part.domain, {}).get(NUMBERS + answer.part.domain),
            )
            for answer in answers
        }


def check_network(config: Any) -> None:
    """Refuse a network that gives no class for each pixel.

    Raises:
        ConfigError: With what it gives of an image.
    """
    import torch  # of a server too, but not of whoever reads a run

    from fedshift_app.node import setup

    model, side = setup.initial_model(config).eval(), config.dataset.pixels
    with torch.no_grad():
        given = tuple(model(torch.zeros(1, 3, side, side))[1].shape[1:])
    if given != (wanted := (len(config.dataset.known().classes), side, side)):
        raise ConfigError(
            f"model.name={config.model.name}: with method={config.method['name']} logits of an image have the shape "
            f"{given}, task=segmentation needs {wanted}; allowed are unet:small, unet:NAME and others that give masks"
        )


def _check(numbers: np.ndarray[Any, Any], images: int, domain: str) -> None:
    known = numbers != ABSENT
    if not np.isfinite(numbers).all() or (known & (numbers < 0)).any():
        raise Refused(f"figures of masks of {domain!r} hold numbers below 0, or that are not finite")
    shares = [METRICS.index(name) for name in METRICS if name != "hd95"]
    if (numbers[shares, :, 0] > MOST).any():
        raise Refused(f"figures of masks of {domain!r} hold shares above 1")
    if (numbers[..., 3] > images).any() or (numbers[..., 4] > numbers[..., 3]).any():
        raise Refused(f"figures of masks of {domain!r} are of more images or patients than the {images} asked for")
