"""Which test images a node scores, and how it did: as types, with their codecs. No Flower, as clients use it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from fedshift_core.limits import Refused
from fedshift_core.wire import names as wire


@dataclass(frozen=True)
class Part:
    """Test images of a domain that one node is to score. They are all of those drawn from a test set, or some.

    Attributes:
        domain: Whose test set.
        drawn: How many of its images are scored at all, by whomever.
        start: First of the drawn images that the node scores.
        stop: One past the last of them.
    """

    domain: str
    drawn: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def parts_to_options(parts: Iterable[Part], *, sliced: bool) -> dict[str, list[str] | list[int]]:
    """Return the parts that a node is to score, as they travel.

    Args:
        parts: Those of one node.
        sliced: Nodes share test sets out (simulation). A real node scores all images that are drawn of its own, and
            refuses a message that names a part of them.
    """
    parts = list(parts)
    drawn: dict[str, list[str] | list[int]] = {
        wire.DOMAINS: [part.domain for part in parts],
        wire.DRAWN: [part.drawn for part in parts],
    }
    if not sliced:
        return drawn
    return drawn | {wire.STARTS: [part.start for part in parts], wire.STOPS: [part.stop for part in parts]}


@dataclass(frozen=True)
class DomainScore:
    """How a node's model did on test images of one domain.

    Attributes:
        correct: Correct top-1 predictions.
        count: Images.
        loss_sum: Cross-entropy summed over them.
        others: By name of another way to score: correct predictions.
    """

    correct: float
    count: float
    loss_sum: float
    others: Mapping[str, float] = field(default_factory=dict)

    KEYS: ClassVar[tuple[str, ...]] = (wire.CORRECT, wire.COUNT, wire.LOSS_SUM)

    def to_numbers(self, domain: str) -> dict[str, Any]:
        """Return the entries of the record ``metrics``."""
        return {
            wire.CORRECT + domain: self.correct,
            wire.COUNT + domain: self.count,
            wire.LOSS_SUM + domain: self.loss_sum,
        } | {self.other_key(name, domain): correct for name, correct in self.others.items()}

    @staticmethod
    def other_key(name: str, domain: str) -> str:
        """Return the name of the number of another way to score."""
        return f"{wire.OTHER_CORRECT}{name}/{domain}"

    @classmethod
    def from_numbers(cls, numbers: Mapping[str, Any], domain: str, others: Iterable[str]) -> Self:
        """Read the entries of a record ``metrics``, whose names and ranges were checked.

        Raises:
            Refused: If the domain lacks a number, or more are correct than there are images.
        """
        if not all(key + domain in numbers for key in cls.KEYS):
            raise Refused(f"no numbers for domain {domain!r}")
        correct, count, loss_sum = (float(numbers[key + domain]) for key in cls.KEYS)
        if correct > count:
            raise Refused(f"{correct:g} correct of {count:g} in domain {domain!r}")
        named = {name: cls.other_key(name, domain) for name in others}
        correct_of = {name: float(numbers[key]) for name, key in named.items() if key in numbers}
        for name, right in correct_of.items():
            if right > count:
                raise Refused(f"{named[name]} {right:g} of {count:g}")
        return cls(correct, count, loss_sum, correct_of)
