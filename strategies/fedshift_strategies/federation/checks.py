"""What a node may say. One rule checks all its answers before any of it is used, logged or kept.

Records, names and numbers are those that the run knows: what a node calls anything else is refused, whatever it is.
Each number has its range. A reply that breaks the rule is left out whole, in one line.

A node is not trusted to be whole: a bug, a broken disk or its owner may make it send anything. The bounds keep a
run going and its model finite; they do not make an average robust against a node that lies within them
(docs/deploy/security.md).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedshift_core.limits import (
    LARGEST_COUNT,
    MOST_LOSS,
    MOST_METRICS,
    MOST_NAME,
    MOST_SECONDS,
    Refused,
    Wild,
    is_number,
    plain,
    whole,
)
from fedshift_core.plural import plural
from fedshift_core.wire.names import (
    CONFIG,
    DECLINED,
    KEPT,
    LOSS,
    LOSS_TERM,
    MACHINE_FAILED,
    METRICS,
    NUM_EXAMPLES,
    PROCESS,
    SECONDS,
    STARTED_ANEW,
    WITHHELD,
    WORK,
)
from fedshift_core.wire.records import config_record

NO_ANSWER = "no answer in time"
OWNER = "its owner's policy refuses: "  # before the reason of a node that does not do what its owner does not allow
MACHINE = "no fault of its own: "  # before the reason of a simulated node that its machine has failed


@dataclass(frozen=True)
class Range:
    """What a number may be.

    Attributes:
        least: The smallest.
        most: The largest.
        whole: It has no fraction.
        nan: It may be NaN, which says that training diverged.
        wild: One out of range says so, too.
    """

    least: float
    most: float
    whole: bool = True
    nan: bool = False
    wild: bool = False

    def check(self, name: str, value: object) -> None:
        """Check a number; the name is one that the run knows.

        Raises:
            Refused: If it is none of these.
        """
        if not is_number(value):
            raise Refused(f"{name} is not a number")
        if self.nan and math.isnan(value):
            return
        if not self.least <= value <= self.most or (self.whole and value != int(value)):
            kind = "whole numbers" if self.whole else "numbers"
            allowed = f"allowed are {kind} from {self.least:g} to {self.most:g}"
            kind_of = Wild if self.wild else Refused
            raise kind_of(f"{name} is {value:g}, {allowed if self.least < self.most else f'expected is {self.most:g}'}")


Known = Mapping[str, Range]

ANY_COUNT = Range(0, LARGEST_COUNT)
ANY_NUMBER = Range(0, LARGEST_COUNT, whole=False)
_ONE = Range(1, 1)
#: What a node may say in addition to the results of its work.
_ASIDE: Known = {
    PROCESS: ANY_COUNT,
    KEPT: _ONE,
    STARTED_ANEW: _ONE,
    WITHHELD: _ONE,
    **{SECONDS + part: Range(0, MOST_SECONDS, whole=False) for part in WORK},
}
#: A mean over training images.
_LOSS = Range(-MOST_LOSS, MOST_LOSS, whole=False, nan=True, wild=True)


def opened(reply: Message, records: Collection[str]) -> RecordDict:
    """Return what a reply holds, if that is these records and no other.

    Raises:
        Refused: If it is not, or the reply is an error.
    """
    if reply.has_error():
        whose = {DECLINED: OWNER, MACHINE_FAILED: MACHINE}.get(reply.error.code, "")
        raise Refused(f"{whose}{plain(reply.error.reason)}")
    for name in reply.content:
        if name not in records:
            raise Refused(f"unknown record {plain(name, MOST_NAME)!r}")
    return reply.content


def event_of(reason: str, otherwise: str = "refused_node") -> str:
    """Return the event of the log for a node that is not taken for a reason: its owner's, or ``otherwise``."""
    return "declined" if OWNER in reason else otherwise


def is_lost(reason: str) -> bool:
    """Tell whether a node is left out for no fault of its own."""
    return reason == NO_ANSWER or reason.startswith(MACHINE)


def config_of(content: RecordDict) -> ConfigRecord:
    """Return the record of what a node says.

    Raises:
        Refused: If there is none.
    """
    said = config_record(content, CONFIG)
    if said is None:
        raise Refused(f"the reply lacks the record {CONFIG!r}")
    return said


def metrics_of(content: RecordDict) -> MetricRecord:
    """Return the record of numbers.

    Raises:
        Refused: If there is none.
    """
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord):
        raise Refused(f"the reply lacks the record {METRICS!r}")
    return metrics


def let_go(reply: Message) -> None:
    """Empty a reply that is not used. Flower holds its list of replies until those of the next round are there."""
    if reply.has_content():
        for name in list(reply.content):
            del reply.content[name]


def check_names(metrics: Mapping[str, Any], known: Collection[str]) -> None:
    """Check that a node gives no other names to numbers than these.

    Raises:
        Refused: If it does, or gives too many.
    """
    if len(metrics) > MOST_METRICS:
        raise Refused(f"{plural(len(metrics), 'metric')}, allowed are {MOST_METRICS}")
    for name in metrics:
        if name not in known:
            why = ": no loss term that the run declares (`terms`)" if name.startswith(LOSS_TERM) else ""
            raise Refused(f"unknown metric {plain(name, MOST_NAME)!r}{why}")


def check_numbers_of(metrics: Mapping[str, Any], known: Known) -> None:
    """Check all names and numbers of a reply; a node may always add what is in ``_ASIDE``.

    Raises:
        Refused: If one is not allowed.
    """
    known = {**_ASIDE, **known}
    check_names(metrics, known)
    for name, value in metrics.items():
        known[name].check(name, value)


def trained(metrics: Mapping[str, Any], announced: int, terms: Sequence[str], more: Known) -> None:
    """Check what a node says after local training.

    Args:
        metrics: What it says.
        announced: Training images that it announced before the first round; more would give it more weight.
        terms: Names of the loss terms that the run declares.
        more: What numbers the run's features allow besides.

    Raises:
        Refused: If a name or a number is not allowed.
    """
    number = whole(metrics.get(NUM_EXAMPLES), 0, LARGEST_COUNT)
    if not number:
        raise Refused(f"{NUM_EXAMPLES} is missing or not above 0")
    if number > announced:
        raise Refused(f"{NUM_EXAMPLES} is {number}, announced were {announced}")
    known = {NUM_EXAMPLES: ANY_COUNT, LOSS: _LOSS} | {LOSS_TERM + term: _LOSS for term in terms} | dict(more)
    check_numbers_of(metrics, known)


def loss_sum_of(images: int) -> Range:
    """Return the range of a cross-entropy summed over so many test images."""
    return Range(-MOST_LOSS * images, MOST_LOSS * images, whole=False)


def right_of(metrics: Mapping[str, Any], correct_name: str, count_name: str) -> tuple[float, float]:
    """Return how many were right of how many; 0 of 0 where the node says nothing.

    Args:
        metrics: Checked by :func:`check_numbers_of`.
        correct_name: Of how many were right.
        count_name: Of how many there are.

    Raises:
        Refused: If more were right than there are.
    """
    correct, count = (float(metrics.get(name, 0.0)) for name in (correct_name, count_name))
    if correct > count:
        raise Refused(f"{correct_name} {correct:g} of {count:g}")
    return correct, count
