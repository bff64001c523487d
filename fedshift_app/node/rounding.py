"""Numbers behind scores leave a guarded node in steps of its owner's least number of images.

A number is moved to one of its two neighbours on a grid, by a draw that keeps its mean over owners' secrets: it is
drawn from the secret, the number's name and the number itself. So one number is always moved to the same side, however
often and with whatever weights it comes about. The last step of the grid ends at the largest value, and is the longest.
"""

import hashlib
import hmac
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from flwr.app import MessageType, RecordDict

from fedshift_app.config.sections import RunConfig
from fedshift_app.node.data import own_images
from fedshift_app.node.place import Place, PolicyError
from fedshift_app.node.requests import ALWAYS
from fedshift_clients import features
from fedshift_clients.features import Rate
from fedshift_clients.training.eval_slices import most_loss
from fedshift_core.features import ours
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.wire.names import (
    ASK_LOSS,
    CONFIG,
    CORRECT,
    COUNT,
    GAP,
    KEPT,
    LOCAL_CORRECT,
    LOCAL_COUNT,
    LOCAL_DOMAINS,
    LOCAL_OWN_CORRECT,
    LOCAL_OWN_COUNT,
    LOCAL_RECEIVED,
    LOCAL_TRAINED,
    LOSS_SUM,
    METRICS,
    NUM_EXAMPLES,
    OTHER_CORRECT,
    PROCESS,
    RECEIVED_LOSS,
    SECONDS,
    STARTED_ANEW,
    VALIDATION_CORRECT,
    VALIDATION_COUNT,
    VALIDATION_LOSS_SUM,
    WITHHELD,
)
from fedshift_core.wire.records import decode, encode

#: Sections of a configuration that decide how weights are scored.
_SECTIONS = {
    "dataset",
    "allocation",
    "shift",
    "adapt",
    "images",
    "model",
    "modules",
    "method",
    "evaluate",
    "train",
    "task",
}
_ASKS = {ASK_LOSS, GAP, LOCAL_DOMAINS}  # what asks for scores in a message to train
#: Numbers of a reply with scores that tell nothing of how images were scored.
_NO_SCORES = (NUM_EXAMPLES, KEPT, STARTED_ANEW, WITHHELD, COUNT, VALIDATION_COUNT, SECONDS, PROCESS)
#: By the name of a count of correct predictions, or of a summed loss, that of the images behind it.
_BEHIND = {
    CORRECT: COUNT,
    LOCAL_CORRECT: LOCAL_COUNT,
    LOCAL_OWN_CORRECT: LOCAL_OWN_COUNT,
    VALIDATION_CORRECT: VALIDATION_COUNT,
    LOSS_SUM: COUNT,
    VALIDATION_LOSS_SUM: VALIDATION_COUNT,
}


def question(kind: str, content: RecordDict, config: RunConfig, where: Place) -> str:
    """Return a hash of what decides the scores that a message to a guarded node asks for; empty of any other."""
    record = content.config_records[CONFIG]
    if where.guard is None or not (kind == MessageType.EVALUATE or record.keys() & _ASKS):
        return ""
    digest = hashlib.sha256(config.model_dump_json(include={*_SECTIONS, config.task}).encode())
    for name, arrays in sorted(content.array_records.items()):
        for key, array in sorted(arrays.items()):
            digest.update(json.dumps([name, key, array.dtype, list(array.shape), len(array.data)]).encode())
            digest.update(array.data)
    options = sorted((key, record[key]) for key in record if key not in ALWAYS)  # which name the run and the round
    digest.update(repr(options).encode())
    return digest.hexdigest()[:16]


def round_scores(kind: str, reply: RecordDict, config: RunConfig, where: Place) -> None:
    """Let what tells how images were scored out of a reply in steps alone.

    Raises:
        PolicyError: If there is another number with scores.
    """
    assert where.guard is not None
    numbers, own, rule = reply.metric_records[METRICS], own_images(config, where), config.aggregation
    classes = len(config.dataset.known().classes)
    most, sets = most_loss(classes), {"train": own.train} | own.sets
    gap = (len(sets.get(rule.gap_on, ())), most if rule.gap == "loss" else 1.0)
    means = {RECEIVED_LOSS: (len(own.train), most), LOCAL_RECEIVED: gap, LOCAL_TRAINED: gap}
    rounding = Rounding(where.guard.secret, where.guard.least, classes, means)
    rounded = dict(rounding.scores({name: value for name, value in numbers.items() if not isinstance(value, list)}))
    others = (feature for feature in features.of(config).declared if feature not in ours())
    known = [key for feature in others for key in feature.evaluate_reply]
    for name in numbers if kind == MessageType.EVALUATE else ():
        if not (name in rounded or name.startswith(_NO_SCORES) or any(key.fits(name) for key in known)):
            raise PolicyError(f"{plain(name, MOST_NAME)} is no number that leaves with scores")
    for name, value in rounded.items():
        numbers[name] = value
    for name, half in features.of(config).figures.items():
        if name in reply:
            reply[name] = encode(half.in_steps(decode(reply.array_records[name]), rounding.rates, rounding.least))


@dataclass(frozen=True)
class Rounding:
    """Rounds the numbers of one reply.

    Attributes:
        secret: The owner's.
        least: Least number of images behind a number.
        classes: C.
        means: By the name of a mean over images, their number and the most that one adds.
    """

    secret: int = field(repr=False)
    least: int
    classes: int
    means: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    def draw(self, name: str) -> float:
        """Return a number from 0 to below 1, the same whenever it is asked for."""
        key = self.secret.to_bytes(32, "big")
        return int.from_bytes(hmac.digest(key, name.encode(), "sha256")[:6], "big") / 2**48

    def of_images(self, value: float, images: int, name: str, each: float = 1.0) -> float:
        """Return a sum over images rounded, where one adds from 0 to ``each``."""
        if not images:
            return 0.0
        steps = max(images // self.least, 1)
        step, most = self.least * each, images * each
        low = min(math.floor(value / step), steps - 1)
        start, end = low * step, most if low == steps - 1 else (low + 1) * step
        drawn = self.draw(f"{name} of {images}: {value / step:.2f}")  # sums of losses that hardly differ have one draw
        return end if drawn < (value - start) / (end - start) else start

    def scores(self, numbers: Mapping[str, float]) -> Iterator[tuple[str, int | float]]:
        """Yield the numbers of a reply that tell how images were scored, rounded."""
        for name, value in numbers.items():
            images = _images_behind(name, numbers)
            if images is not None and name.startswith((LOSS_SUM, VALIDATION_LOSS_SUM)):
                yield name, self.of_images(value, images, name, most_loss(self.classes))
            elif images is not None:
                yield name, round(self.of_images(value, images, name))
            elif name in self.means:
                images, each = self.means[name]
                yield name, self.of_images(value * images, images, name, each) / images

    def rates(self, domain: str) -> Rate:
        """Return what rounds figures of a domain: of a name, a value and the number of images behind it."""

        def rate(name: str, value: float, images: int) -> float:
            of = CORRECT + domain if name == "accuracy" else f"{name}/{domain}"  # one number, however it is called
            return self.of_images(round(value * images, 9), images, of) / images

        return rate


def _images_behind(name: str, numbers: Mapping[str, float]) -> int | None:
    """Return the number of images behind a score; None of a number that is none."""
    for score, count in _BEHIND.items():
        if score.endswith("/") and name.startswith(score):
            return int(numbers[count + name.removeprefix(score)])
        if name == score:
            return int(numbers[count])
    if name.startswith(OTHER_CORRECT):
        domains = [key.removeprefix(COUNT) for key in numbers if key.startswith(COUNT)]
        return next((int(numbers[COUNT + domain]) for domain in domains if name.endswith(f"/{domain}")), None)
    return None
