"""What a node says of itself before it takes part. It is refused where it makes no sense in the run."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from flwr.app import Message

from fedshift_core.errors import FederationError
from fedshift_core.limits import LARGEST_COUNT, MOST_NAME, plain, whole
from fedshift_core.params import ARITHMETICS
from fedshift_core.plural import plural
from fedshift_core.wire.names import (
    CLASS_COUNTS,
    CONFIG,
    DOMAIN,
    FASTEST,
    HELD_TEST,
    METRICS,
    NUM_PARTITIONS,
    NUM_PUBLIC,
    NUM_TEST,
    NUM_VALIDATION,
    PARTITION_ID,
    PUBLIC,
    SHARED_TEST,
    UNHELD_TEST,
)
from fedshift_strategies.federation import checks
from fedshift_strategies.federation.nodes import UNSEATED, Node

_SHA256 = re.compile(r"[0-9a-f]{64}")
LARGEST_INDEX = 10**6  # of a node: a partition-id above is taken for a mistake


class Introduction:
    """Reads what nodes say of themselves.

    Args:
        domains: The domains of the run, in their order.
        simulated: Nodes are simulated, which see complete test sets.
        num_classes: C.
    """

    def __init__(
        self, domains: tuple[str, ...], num_classes: int, *, simulated: bool, held_out: Collection[str] = ()
    ) -> None:
        self._held_out = frozenset(held_out)
        self._domains, self._num_classes, self._simulated = domains, num_classes, simulated
        self._known = {
            CLASS_COUNTS,
            NUM_TEST,
            SHARED_TEST,
            PARTITION_ID,
            NUM_PARTITIONS,
            NUM_VALIDATION,
            FASTEST,
            NUM_PUBLIC,
            *(kind + domain for kind in (UNHELD_TEST, HELD_TEST) for domain in domains),
        }

    def read(self, reply: Message) -> tuple[Node, int]:
        """Return what a node says of itself, checked: a node without a place, and how many nodes there are.

        A real node cannot know how many there are: its number is 0.

        Raises:
            FederationError: If it makes no sense in this run.
            Refused: If the reply is an error, or not made as an answer is.
        """
        content = checks.opened(reply, (CONFIG, METRICS))
        numbers = checks.metrics_of(content)
        checks.check_names(numbers, self._known)
        try:
            said: Any = content[CONFIG]
            most = len(ARITHMETICS) - 1
            node = Node(
                node_id=reply.metadata.src_node_id,
                index=UNSEATED,
                domain=said[DOMAIN],
                class_counts=self._counts(numbers[CLASS_COUNTS]),
                num_test=_whole(NUM_TEST, numbers[NUM_TEST]),
                shared_test=_whole(SHARED_TEST, numbers[SHARED_TEST], most=1) == 1,
                partition_id=_whole(PARTITION_ID, numbers[PARTITION_ID], UNSEATED, LARGEST_INDEX),
                unheld_tests=_tests(numbers, UNHELD_TEST),
                num_validation=_whole(NUM_VALIDATION, numbers.get(NUM_VALIDATION, 0)),
                num_public=_whole(NUM_PUBLIC, numbers.get(NUM_PUBLIC, 0)),
                public=_digest(said.get(PUBLIC, "")),
                held_tests=_tests(numbers, HELD_TEST),
                fastest=ARITHMETICS[_whole(FASTEST, numbers[FASTEST], most=most)] if FASTEST in numbers else None,
            )
            announced = _whole(NUM_PARTITIONS, numbers[NUM_PARTITIONS], UNSEATED, LARGEST_INDEX)
        except (KeyError, TypeError) as error:
            raise FederationError(f"a node's answer about itself is incomplete: {plain(repr(error))}") from None
        self._check(node)
        # Simulated nodes know how many they are.
        return node, announced if node.shared_test else 0

    def _counts(self, announced: object) -> tuple[int, ...]:
        """Return the training images per class; a list of another length is not read."""
        if not isinstance(announced, list) or len(announced) != self._num_classes:
            description = f"{plural(len(announced), 'class', 'classes')}" if isinstance(announced, list) else "no list"
            raise FederationError(
                f"a node announces training images of {description}, expected are "
                f"{plural(self._num_classes, 'class', 'classes')}"
            )
        return tuple(_whole(CLASS_COUNTS, count) for count in announced)

    def _check(self, node: Node) -> None:
        """Refuse what a node says of itself if it makes no sense in this run."""
        if node.domain not in self._domains:
            name = plain(node.domain, MOST_NAME) if isinstance(node.domain, str) else type(node.domain).__name__
            raise FederationError(f"a node says that its domain is {name!r}; allowed are {', '.join(self._domains)}")
        if node.held_tests and (self._simulated or len(set(node.domains)) < len(node.domains)):
            allowed = "in a simulation each has one" if self._simulated else f"{node.domain!r} is to be named once"
            raise FederationError(f"a node says that it holds {', '.join(node.domains)}; {allowed}")
        if unseen := self._held_out.intersection(node.domains):
            raise FederationError(
                f"a node says that it holds {sorted(unseen)[0]!r}, which allocation.held_out keeps from all nodes"
            )
        if not node.num_examples:
            raise FederationError(f"a node of {node.domain!r} announces 0 training images, expected at least one")
        if node.shared_test and not self._simulated:
            raise FederationError(
                f"a node of {node.domain!r} says that it sees whole test sets, which only simulated nodes do"
            )


def _digest(digest: object) -> str:
    """Return the SHA-256 of a node's copy of the public set; empty where it sent none."""
    if not isinstance(digest, str) or (digest and not _SHA256.fullmatch(digest)):
        raise FederationError(f"a node's answer about itself makes no sense: {PUBLIC} is no SHA-256")
    return digest


def _tests(numbers: Mapping[str, Any], kind: str) -> tuple[tuple[str, int], ...]:
    """Return the test images that a node announces under names of this kind, by domain."""
    own = {key: number for key, number in numbers.items() if key.startswith(kind)}
    return tuple((key.removeprefix(kind), _whole(kind, number)) for key, number in own.items())


def _whole(key: str, value: object, least: int = 0, most: int = LARGEST_COUNT) -> int:
    number = whole(value, least, most)
    if number is None:
        description = f"{value:g}" if isinstance(value, int | float) else f"a {type(value).__name__}"  # of any length
        raise FederationError(
            f"a node's answer about itself makes no sense: {key} is {description}, "
            f"expected a whole number from {least} to {most}"
        )
    return number
