"""Who takes part: each node is asked once what it is, and gets a place in a fixed order.

Node ids are random, and replies come in any order; everything that must not depend on chance goes by
the index of a node instead.
"""

import logging
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedshift_wire.bounds import LARGEST_COUNT, MOST_NAME, Refused, plain, whole
from fedshift_wire.errors import FederationError
from fedshift_wire.names import (
    ARRAYS,
    CLASS_COUNTS,
    CONFIG,
    DOMAIN,
    ENGINE,
    FASTEST,
    KNOWLEDGE,
    METRICS,
    NUM_PARTITIONS,
    NUM_PUBLIC,
    NUM_TEST,
    NUM_VALIDATION,
    PARTITION_ID,
    PUBLIC,
    RUN,
    SHARED_TEST,
    UNHELD_TEST,
)  # fmt: skip
from fedshift_wire.params import ARITHMETICS, Arithmetic
from strategies.federation import checks
from strategies.federation.sent import Sent

log = logging.getLogger("fedshift")

POLL_SECONDS = 0.2
REMIND_SECONDS = 10.0
_SHA256 = re.compile(r"[0-9a-f]{64}")
UNSEATED = -1
LARGEST_INDEX = 10**6  # of a node: a partition-id above is taken for a mistake
MOST_REASONS = 20  # why nodes were refused that an error can tell; it shows two


@dataclass(frozen=True)
class Node:
    """What the server knows of a node; never an image.

    Attributes:
        node_id: Flower's id, random.
        index: The node's place in the order of the federation, from 0; -1 before it has one.
        domain: The domain of its images.
        class_counts: Training images per class.
        num_test: Test images of its own domain.
        shared_test: It sees the whole test set of any domain (simulation), not only a part of its own.
        partition_id: The number it was started with, or -1.
        unheld_tests: Test images that it sees of each domain that no node holds.
        num_validation: Images of its validation part.
        num_public: Images of its copy of the public set; 0 where the method uses none.
        public: SHA-256 of that copy.
    """

    node_id: int
    index: int
    domain: str
    class_counts: tuple[int, ...]
    num_test: int
    shared_test: bool
    partition_id: int
    unheld_tests: tuple[tuple[str, int], ...] = ()
    num_validation: int = 0
    num_public: int = 0
    public: str = ""

    def tests_of(self, domain: str) -> int:
        """Return the number of test images that the node can be asked to score of a domain."""
        return self.num_test if domain == self.domain else dict(self.unheld_tests).get(domain, 0)

    @property
    def num_examples(self) -> int:
        """Number of training images."""
        return sum(self.class_counts)

    def __str__(self) -> str:
        return f"node {self.index} ({self.domain})"


class Listener:
    """Is told what a run is doing, for whoever watches it; this one does nothing."""

    def waiting(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        """Too few nodes are connected (``present``, of all ``nodes``) to begin the next round."""

    def connected(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        """It was looked which of all ``nodes`` are connected."""

    def asked(self, server_round: int, nodes: Sequence[Node], *, training: bool) -> None:
        """Nodes are asked to train or to evaluate; once more in an evaluation in which others failed."""

    def answered(self, node_ids: Collection[int]) -> None:
        """Nodes have answered, usably or not; some of them may have been told of before."""

    def left_out(self, server_round: int, node: Node, reason: str) -> None:
        """A node's answer is not used."""


class Roster:
    """The nodes of a federation, by index.

    Attributes:
        listener: Is told who is connected.
        fastest: By node id, what trains fastest there, of nodes that told it.
    """

    def __init__(self, domains: tuple[str, ...], engine: str, run_json: str, num_classes: int) -> None:
        self.listener = Listener()
        self.fastest: dict[int, Arithmetic] = {}
        self._domains, self._num_classes = domains, num_classes
        self._simulated = engine == "simulation"
        self._config = {ENGINE: engine, RUN: run_json}
        self._known = frozenset((
            CLASS_COUNTS, NUM_TEST, SHARED_TEST, PARTITION_ID, NUM_PARTITIONS, NUM_VALIDATION, FASTEST, NUM_PUBLIC,
            *(UNHELD_TEST + domain for domain in domains),
        ))  # fmt: skip
        self._nodes: dict[int, Node] = {}  # by node id
        self._refused: set[int] = set()  # node ids that cannot take part, or whose place another took
        self._doubled: set[int] = set()  # node ids that wait, and were told of, because their place is taken
        self._reasons: dict[str, int] = {}  # why nodes were refused, with their number
        self._announced = 0  # how many nodes there are by the nodes' own word

    @property
    def nodes(self) -> list[Node]:
        """All nodes that have ever had a place, in the order of their index."""
        seated = (node for node in self._nodes.values() if node.index != UNSEATED)
        return sorted(seated, key=lambda node: node.index)

    @property
    def num_domains(self) -> int:
        """How many domains those nodes hold."""
        return len({node.domain for node in self.nodes})

    def tell(self, run_json: str) -> None:
        """Send this configuration to nodes that come from now on."""
        self._config[RUN] = run_json

    def gather(self, grid: Grid, at_least: int, timeout: float) -> None:
        """Wait until ``at_least`` nodes, or as many as the nodes say there are, can take part.

        A real node that cannot is left out with a line and does not count: it may be its owner's mistake, or his will.
        Simulated nodes have one configuration, so what is wrong with one is the user's own mistake.

        Raises:
            FederationError: If too few come in ``timeout`` seconds; in a simulation, if a node cannot take part.
        """
        started = reminded = time.monotonic()
        while True:
            problems = self._ask_strangers(grid, timeout)
            if problems and self._simulated:
                raise FederationError(_first_two(list(problems), "\n"))
            for problem, number in problems.items():
                who = "a node" if number == 1 else f"{number} nodes"
                log.warning(
                    "%s cannot take part, the others go on: %s", who, problem, extra={"event": "refused_node"}
                )  # fmt: skip
            twins = self._twins()
            if twins and self._simulated:
                raise FederationError(_first_two(twins, "\n"))
            wanted, here = max(at_least, self._announced), len(self._nodes) - len(twins)
            if here >= wanted:
                self._seat(set(self._nodes), started=False)
                return
            now = time.monotonic()
            if now - started > timeout:
                raise FederationError(self._too_few(here, wanted, timeout))
            if now - reminded > REMIND_SECONDS:
                told = {"event": "waiting"}
                log.info("waiting for nodes: %d of %d are here", here, wanted, extra=told)
                reminded = now
            time.sleep(POLL_SECONDS)

    def _twins(self) -> list[str]:
        """Return, for each node whose number another one has that goes before it, what is wrong."""
        first: dict[int, Node] = {}
        problems = []
        for node in sorted(self._nodes.values(), key=self._rank):
            if node.partition_id in first:
                problems.append(_doubled(node.partition_id, first[node.partition_id], node))
            elif node.partition_id >= 0:
                first[node.partition_id] = node
        return problems

    def _too_few(self, here: int, wanted: int, timeout: float) -> str:
        """Return that too few nodes can take part, and why others cannot."""
        reasons = dict(self._reasons)
        for problem in self._twins():
            _count(reasons, problem)
        within = f"within {timeout:.0f} s (federation.node_timeout)"
        if not reasons:
            return f"{here} of {wanted} nodes answered {within}; start the others, or lower federation.min_nodes"
        refused = sum(reasons.values())
        return (
            f"{here} of {wanted} nodes that can take part answered {within}, {refused} "
            f"{'was' if refused == 1 else 'were'} refused: {_first_two(sorted(reasons), '; ')}"
        )

    def online(self, grid: Grid, timeout: float) -> list[Node]:
        """Return the nodes that are connected now, in the order of their index; newcomers are asked first.

        A newcomer that cannot take part is logged and left out: the others go on.
        """
        for problem in self._ask_strangers(grid, timeout):  # each once, however many nodes have it
            log.warning("a new node cannot take part: %s", problem, extra={"event": "refused_node"})
        known = {node.index for node in self.nodes}
        ids = set(grid.get_node_ids())
        self._seat(ids, started=True)
        nodes = self.nodes
        for node in nodes:
            if node.index not in known:
                told = {"event": "new_node", "node": node.index, "domain": node.domain}
                log.info("%s is new: %d images", node, node.num_examples, extra=told)
        present = [node for node in nodes if node.node_id in ids]
        self.listener.connected(present, nodes)
        return present

    def wait_for(self, grid: Grid, at_least: int, timeout: float) -> list[Node]:
        """Return the nodes that are connected now, as :meth:`online`, once there are ``at_least``.

        Raises:
            FederationError: If there are not in ``timeout`` seconds.
        """
        started, reminded = time.monotonic(), -2 * REMIND_SECONDS
        while True:
            nodes, waited = self.online(grid, timeout), time.monotonic() - started
            if len(nodes) >= at_least:
                return nodes
            if waited > timeout:
                raise FederationError(
                    f"{len(nodes)} of at least {at_least} nodes (federation.min_nodes) were connected for "
                    f"{timeout:.0f} s (federation.node_timeout); the rounds before are in the run folder"
                )
            if waited - reminded > REMIND_SECONDS:
                self.listener.waiting(nodes, self.nodes)
                log.warning(
                    "waiting for nodes: %d of at least %d (federation.min_nodes) are connected; the run ends in %.0f s",
                    len(nodes), at_least, timeout - waited, extra={"event": "waiting"},
                )  # fmt: skip
                reminded = waited
            time.sleep(POLL_SECONDS)

    def _ask_strangers(self, grid: Grid, timeout: float) -> dict[str, int]:
        """Ask every node that was not asked yet what it is; return the problems, each with its number of nodes."""
        strangers = sorted(set(grid.get_node_ids()) - self._nodes.keys() - self._refused)
        content = RecordDict({
            ARRAYS: ArrayRecord(), KNOWLEDGE: ArrayRecord(), CONFIG: ConfigRecord(dict(self._config))
        })  # fmt: skip
        questions = [Message(content, node_id, MessageType.QUERY) for node_id in strangers]
        problems: dict[str, int] = {}
        answers, strays = Sent(questions).answers(
            grid.send_and_receive(questions, timeout=timeout) if questions else ()
        )
        for _ in strays:
            # SuperLink itself answers for a node whose SuperNode was killed: it is not here.
            log.info("a node that is still registered does not answer", extra={"event": "silent_node"})
        for reply in answers:
            try:
                node = self._read(reply)
                self._nodes[node.node_id] = node
            except (FederationError, Refused) as error:
                problems[str(error)] = problems.get(str(error), 0) + 1
                _count(self._reasons, str(error))
                self._refused.add(reply.metadata.src_node_id)
        return dict(sorted(problems.items()))

    def _read(self, reply: Message) -> Node:
        content = checks.opened(reply, (CONFIG, METRICS))
        numbers = checks.metrics_of(content)
        checks.check_names(numbers, self._known)
        try:
            said: Any = content[CONFIG]
            domain = said[DOMAIN]
            unheld = {key.removeprefix(UNHELD_TEST): key for key in numbers if key.startswith(UNHELD_TEST)}
            node = Node(
                node_id=reply.metadata.src_node_id,
                index=UNSEATED,
                domain=domain,
                class_counts=self._counts(numbers[CLASS_COUNTS]),
                num_test=_whole(NUM_TEST, numbers[NUM_TEST]),
                shared_test=_whole(SHARED_TEST, numbers[SHARED_TEST], most=1) == 1,
                partition_id=_whole(PARTITION_ID, numbers[PARTITION_ID], UNSEATED, LARGEST_INDEX),
                unheld_tests=tuple((name, _whole(UNHELD_TEST, numbers[key])) for name, key in unheld.items()),
                num_validation=_whole(NUM_VALIDATION, numbers.get(NUM_VALIDATION, 0)),
                num_public=_whole(NUM_PUBLIC, numbers.get(NUM_PUBLIC, 0)),
                public=_digest(said.get(PUBLIC, "")),
            )
            announced = _whole(NUM_PARTITIONS, numbers[NUM_PARTITIONS], UNSEATED, LARGEST_INDEX)
        except (KeyError, TypeError) as error:
            raise FederationError(f"a node's answer about itself is incomplete: {plain(repr(error))}") from None
        self._check(node)
        if FASTEST in numbers:
            self.fastest[node.node_id] = ARITHMETICS[_whole(FASTEST, numbers[FASTEST], most=len(ARITHMETICS) - 1)]
        if node.shared_test:  # simulated nodes know how many they are
            self._announced = max(self._announced, announced)
        return node

    def _counts(self, told: object) -> tuple[int, ...]:
        """Return the training images per class; a list of another length is not looked through."""
        if not isinstance(told, list) or len(told) != self._num_classes:
            found = f"{len(told)} classes" if isinstance(told, list) else "no list"
            raise FederationError(
                f"a node announces training images of {found}, expected are {self._num_classes} classes"
            )  # fmt: skip
        return tuple(_whole(CLASS_COUNTS, count) for count in told)

    def _check(self, node: Node) -> None:
        """Refuse what a node says of itself if it makes no sense in this run."""
        if node.domain not in self._domains:
            told = plain(node.domain, MOST_NAME) if isinstance(node.domain, str) else type(node.domain).__name__
            raise FederationError(f"a node says that its domain is {told!r}; allowed are {', '.join(self._domains)}")
        if not node.num_examples:
            raise FederationError(f"a node of {node.domain!r} announces 0 training images, expected at least one")
        self._check_public(node)
        if node.shared_test and not self._simulated:
            raise FederationError(
                f"a node of {node.domain!r} says that it sees whole test sets, which only simulated nodes do"
            )

    def _check_public(self, node: Node) -> None:
        """Refuse a node whose copy of the public set is not that of the nodes before it."""
        first = next(iter(self._nodes.values()), node)
        if (node.public, node.num_public) != (first.public, first.num_public):
            raise FederationError(
                f"a node of {node.domain!r} has another public set than the node of {first.domain!r} before it: "
                f"{_of_public(node)}, expected {_of_public(first)}; give all nodes the same copy (docs/deployment.md)"
            )

    def _seat(self, online: Collection[int], *, started: bool) -> None:
        """Give each node without an index its own: the partition id where it has one, else the next free.

        The order is by domain, then node id. A node that comes back under a new id takes its old place, also while
        Flower has not yet noticed (for up to a minute) that the SuperNode of before is gone: it is the same node if
        it holds the same images by their numbers. Any other that asks for the place waits until it is free: of two that
        come at once the first in this order has it.
        """
        waiting = [node for node in self._nodes.values() if node.index == UNSEATED]
        taken = {node.index: node for node in self._nodes.values() if node.index != UNSEATED}
        free = 1 + max(taken, default=-1)
        for node in sorted(waiting, key=self._rank):
            index = node.partition_id if node.partition_id >= 0 else free
            former = taken.get(index)
            if former is not None and former.node_id in online and not (started and _same(former, node)):
                problem = _doubled(index, former, node)
                if node.node_id not in self._doubled:
                    log.warning("a node cannot take part: %s", problem, extra={"event": "refused_node"})
                    self._doubled.add(node.node_id)
                continue
            if former is not None:
                told = {"event": "node_back", "node": former.index, "domain": former.domain}
                log.info("%s is here again, under a new id", former, extra=told)
                del self._nodes[former.node_id]
                self._refused.add(former.node_id)
            taken[index] = self._nodes[node.node_id] = replace(node, index=index)
            free = max(free, index + 1)

    def _rank(self, node: Node) -> tuple[bool, int, int, int]:
        return (node.partition_id < 0, node.partition_id, self._domains.index(node.domain), node.node_id)


def _digest(told: object) -> str:
    """Return the SHA-256 of a node's copy of the public set; empty where it told none."""
    if not isinstance(told, str) or (told and not _SHA256.fullmatch(told)):
        raise FederationError(f"a node's answer about itself makes no sense: {PUBLIC} is no SHA-256")
    return told


def _of_public(node: Node) -> str:
    return f"{node.num_public} images, sha256 {node.public[:12] or 'none'}"


def _same(former: Node, node: Node) -> bool:
    """Tell whether two nodes hold the same images, as far as the server can know."""
    return replace(former, node_id=node.node_id, index=node.index) == node


def _doubled(index: int, former: Node, node: Node) -> str:
    return f"two nodes have partition-id {index}: one holds {former.domain!r}, the other {node.domain!r}, which waits"


def _count(reasons: dict[str, int], reason: str) -> None:
    """Count a reason; what comes after the first ``MOST_REASONS`` different ones has one place."""
    key = reason if reason in reasons or len(reasons) < MOST_REASONS else "other reasons"
    reasons[key] = reasons.get(key, 0) + 1


def _first_two(problems: Sequence[str], between: str) -> str:
    more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
    return between.join(problems[:2]) + more


def _whole(key: str, value: object, least: int = 0, most: int = LARGEST_COUNT) -> int:
    number = whole(value, least, most)
    if number is None:
        found = f"{value:g}" if isinstance(value, int | float) else f"a {type(value).__name__}"  # of any length
        raise FederationError(
            f"a node's answer about itself makes no sense: {key} is {found}, "
            f"expected a whole number from {least} to {most}"
        )
    return number
