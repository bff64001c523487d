"""Who evaluates which domain, and what comes of the answers."""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from flwr.app import Message, RecordDict

from fedshift_core.arrays import Arrays
from fedshift_core.limits import Refused
from fedshift_core.wire.names import METRICS, NUM_EXAMPLES, STARTED_ANEW
from fedshift_core.wire.scores import DomainScore, Part
from fedshift_strategies.federation import announced, checks
from fedshift_strategies.federation.checks import ANY_COUNT, ANY_NUMBER, Known
from fedshift_strategies.federation.roster import Node

#: A part is no smaller than so many batches of scoring: it costs a message with the weights and a client of its
#: own, whose making alone takes up to a third of a batch (ResNet-10), so that smaller ones would gain little.
MIN_BATCHES = 8
#: Test images of a real node that are scored by themselves, or left by a sample, unless it has fewer.
LEAST_SAMPLE = 16


Questions = dict[Node, list[Part]]
Observe = Callable[[Node, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Answer:
    """What one node says of one part.

    Attributes:
        node: Who scored it.
        part: The part.
        score: How it did.
        extra: What features read of the same reply for the part's domain, by their name.
    """

    node: Node
    part: Part
    score: DomainScore
    extra: dict[str, Any] = field(default_factory=dict)


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Asked:
    """A feature's part of messages about work, and of what their replies may hold.

    Attributes:
        options: Returns what the message to a node has in its record ``config``.
        records: Arrays that go along, by record.
        bounds: Returns what numbers a node's reply may hold.
        check: Raises ``Refused`` if numbers, each of which is allowed, do not go together.
        when: Tells whether the questions about scores that are at hand have it.
        reads: Names of the records that an answer about scores may have besides its numbers.
        read: Returns what such an answer says, by domain; raises ``Refused`` where it makes no sense.
        take: Takes in the numbers of such an answer, which is used.
        others: Names of other ways to score.
        counts: Tells whether another score is used for a domain, by its name and whether a node holds the domain.
        everyone: All nodes are asked with the first questions, also those without a part.
    """

    options: Callable[[Node], Mapping[str, Any]] = _nothing
    records: Mapping[str, Arrays] = field(default_factory=dict)
    bounds: Callable[[Node], Known] = _nothing
    check: Callable[[Mapping[str, Any]], object] = _nothing
    when: Callable[[], bool] = lambda: True
    reads: tuple[str, ...] = ()
    read: Callable[[RecordDict, Sequence[Answer]], Mapping[str, Any]] = _nothing
    take: Callable[[Node, Mapping[str, Any]], object] = _nothing
    others: tuple[str, ...] = ()
    counts: Callable[[str, bool], bool] = lambda name, held: True
    everyone: bool = False


@dataclass
class _Task:
    """A part, who may still be asked for it, and what was answered.

    Attributes:
        divided: The part belongs to a test set that counts only when all its parts are answered.
    """

    part: Part
    untried: list[Node]
    divided: bool
    answer: Answer | None = None


class Tally:
    """Correct predictions, images and summed loss by domain, over all nodes that answered."""

    def __init__(self, domains: tuple[str, ...]) -> None:
        self._domains = domains
        self._sums: dict[str, dict[str, list[float]]] = {}

    def add(self, domain: str, correct: float, count: float, loss_sum: float = 0.0, way: str = "") -> None:
        """Add one node's answer for one domain; ``way`` names another way of scoring."""
        sums = self._sums.setdefault(way, {known: [0.0] * 3 for known in self._domains})[domain]
        sums[:] = (total + more for total, more in zip(sums, (correct, count, loss_sum), strict=True))

    def others(self) -> dict[str, dict[str, float | None]]:
        """Return top-1 accuracy in percent by way of scoring and by domain."""
        return {way: self.accuracy(way) for way in sorted(self._sums) if way}

    def accuracy(self, way: str = "") -> dict[str, float | None]:
        """Return top-1 accuracy in percent; None for a domain without an answer."""
        return {domain: 100 * c / n if n else None for domain, (c, n, _) in self._of(way)}

    def loss(self) -> dict[str, float | None]:
        """Return the mean cross-entropy; None for a domain without an answer."""
        return {domain: s / n if n else None for domain, (_, n, s) in self._of("")}

    def _of(self, way: str) -> Iterable[tuple[str, list[float]]]:
        return self._sums.get(way, dict.fromkeys(self._domains, [0.0] * 3)).items()


@dataclass
class Evaluation:
    """The questions of one round.

    A test set that many nodes see (simulation) is divided among the nodes of its domain, whole batches each,
    so that all batches are those of a node that scores it alone; a node that fails is replaced by another for
    its part. Nodes with a test part of their own (deployment) all answer, and their parts add up. With
    personal models, and with test sets drawn for each node, every node of the domain answers for itself in
    both engines. A held-out domain, of which there is no node, goes to all nodes that see whole test sets.

    Attributes:
        domains: The domains to score, in their order.
        nodes: The nodes that are connected, in the order of their index.
        personal: Each node has a model of its own.
        own_tests: Each node has a test set of its own for every domain.
        everywhere: Each node that sees all test sets scores each of them with its own model.
        scores_tests: Test images are scored.
        batch: Images per batch on the nodes.
        divisible: The scores of some images do not depend on which others are scored with them.
        share: Share of each test set to score, rounded up to whole batches; once planned, that of all test images.
        scores: Names of other ways to score that the run declares, and of those that features add.
        extras: What features add, by their name.
        silent: Indices of nodes that score nothing, though their domain counts as held.
        trained_only: What a node scored counts only if it still had the parts of its model that it has trained.
        max_images: How many times the median of its domain a node's test images may be, for its scores to count.
        is_first: The questions to ask now are the first ones; later ones are about parts that still have no answer.
    """

    domains: tuple[str, ...]
    nodes: list[Node]
    _: KW_ONLY
    personal: bool
    own_tests: bool = False
    everywhere: bool = False
    scores_tests: bool = True
    batch: int = 64
    divisible: bool = True
    share: float = 1.0
    scores: tuple[str, ...] = ()
    extras: Mapping[str, Asked] = field(default_factory=dict)
    silent: Collection[int] = ()
    trained_only: bool = False
    max_images: float = math.inf
    is_first: bool = True

    def __post_init__(self) -> None:
        """Plan the questions."""
        self.scores = (*self.scores, *(name for extra in self.extras.values() for name in extra.others))
        self._held = {domain for node in self.nodes for domain in node.domains}
        self._failed: set[Node] = set()
        self._asked: dict[Node, list[_Task]] = {}
        self._scored = self._images = 0
        planned = self.domains if self.scores_tests else ()
        self._tasks = [task for i, domain in enumerate(planned) for task in self._plan(i, domain)]
        self.share = self._scored / self._images if self._images else 1.0

    def first(self) -> Questions:
        """Return which node is asked for which parts; for none where a feature asks it for something else alone."""
        everyone = self.nodes if any(extra.everyone for extra in self.extras.values()) else []
        return self._ask({node: [] for node in everyone if node.index not in self.silent})

    def replacements(self) -> Questions:
        """Return whom to ask instead for the parts that still have no answer; empty if nobody is left."""
        return self._ask({})

    def read(self, replies: Iterable[Message], observe: Observe = lambda node, metrics: None) -> list[tuple[Node, str]]:
        """Take in the answers; return the nodes that failed, each with the reason.

        Args:
            replies: One of each node at most; what is not used is let go.
            observe: Is called with the numbers of each reply that is used.
        """
        came = {reply.metadata.src_node_id: reply for reply in replies}
        failed = []
        for node, tasks in self._asked.items():
            reply = came.get(node.node_id)
            try:
                if reply is None:
                    raise Refused(checks.NO_ANSWER)
                observe(node, self._add(node, reply, tasks))
            except Refused as refused:
                failed.append((node, str(refused)))
                if reply is not None:
                    checks.let_go(reply)
        self._failed |= {node for node, _ in failed}
        self._asked, self.is_first = {}, False
        return failed

    def tally(self) -> Tally:
        """Sum up the answers, in the order of the plan. A divided test set that lacks a part gives nothing."""
        tally, missing = Tally(self.domains), self._missing()
        for task in self._tasks:
            if task.answer is None or task.part.domain in missing:
                continue
            domain, score = task.part.domain, task.answer.score
            tally.add(domain, score.correct, score.count, score.loss_sum)
            for name, correct in score.others.items():
                if all(extra.counts(name, domain in self._held) for extra in self.extras.values()):
                    tally.add(domain, correct, score.count, way=name)
        return tally

    def extra(self, name: str, domain: str) -> list[Any]:
        """Return what a feature read for each part of a domain. It is empty where a part lacks it, or an answer."""
        answers = self._answers(domain)
        each = [answer.extra[name] for answer in answers if name in answer.extra]
        return each if len(each) == len(answers) and domain not in self._missing() else []

    def _answers(self, domain: str) -> list[Answer]:
        return [task.answer for task in self._tasks if task.part.domain == domain and task.answer is not None]

    def scored_by(self, domain: str) -> dict[int, int]:
        """Return how many test images of a domain each node has scored, by its index."""
        return {answer.node.index: len(answer.part) for answer in self._answers(domain)}

    def spread(self) -> dict[str, float | None]:
        """Return by domain the sample standard deviation of the nodes' accuracies; None of fewer than two."""
        deviations: dict[str, float | None] = {}
        for domain in self.domains:
            scores = [answer.score for answer in self._answers(domain)]
            each = [100 * score.correct / score.count for score in scores if score.count]
            deviations[domain] = statistics.stdev(each) if len(each) > 1 else None
        return deviations

    def _missing(self) -> set[str]:
        return {task.part.domain for task in self._tasks if task.divided and task.answer is None}

    def _add(self, node: Node, reply: Message, tasks: list[_Task]) -> Mapping[str, Any]:
        """Take in one reply, or nothing of it if anything is wrong with it; return its numbers."""
        extras = {name: extra for name, extra in self.extras.items() if extra.when()}
        content = checks.opened(reply, (METRICS, *(name for extra in extras.values() for name in extra.reads)))
        metrics = checks.metrics_of(content)
        checks.check_numbers_of(metrics, self._known(node, tasks, extras.values()))
        answers = [_answer(node, metrics, task, self.scores) for task in tasks]
        for name, extra in extras.items():
            extra.check(metrics)
            scores_of = extra.read(content, answers)
            for answer in answers:
                if answer.part.domain in scores_of:
                    answer.extra[name] = scores_of[answer.part.domain]
        if self.trained_only and STARTED_ANEW in metrics:  # with parts as they were before round 1
            return metrics
        for task, answer in zip(tasks, answers, strict=True):
            task.answer = answer
        for extra in extras.values():
            extra.take(node, metrics)
        return metrics

    def _known(self, node: Node, tasks: list[_Task], extras: Iterable[Asked]) -> Known:
        """Return what a node may answer: the numbers of its parts, and those of features."""
        known = {NUM_EXAMPLES: ANY_COUNT}
        for task in tasks:
            domain = task.part.domain
            ranges = (ANY_NUMBER, ANY_COUNT, checks.loss_sum_of(len(task.part)))
            known |= {key + domain: allowed for key, allowed in zip(DomainScore.KEYS, ranges, strict=True)}
            known |= {DomainScore.other_key(name, domain): ANY_NUMBER for name in self.scores}
        for extra in extras:
            known |= extra.bounds(node)
        return known

    def _plan(self, place: int, domain: str) -> list[_Task]:
        """Return the parts of a domain; each own test set is one, and only its node can score it."""
        nodes = [node for node in self._candidates(place, domain) if node.index not in self.silent]
        if not nodes:
            return []
        if self.personal or self.own_tests or not all(node.shared_test for node in nodes):
            left = {True: 1, False: LEAST_SAMPLE}  # a real node's scores are its own
            drawn = [self._draw(self._tests(node, domain), left[node.shared_test]) for node in nodes]
            return [_Task(Part(domain, n, 0, n), [node], False) for n, node in zip(drawn, nodes, strict=True)]
        number = self._draw(nodes[0].tests_of(domain))
        cuts = divide(number, self.batch, len(nodes) if self.divisible else 1)
        return [
            _Task(Part(domain, number, start, stop), nodes[i:] + nodes[:i], True)
            for i, (start, stop) in enumerate(cuts)
        ]

    def _draw(self, images: int, least_left: int = 1) -> int:
        number = sample_size(images, self.batch, self.share, least_left)
        self._scored, self._images = self._scored + number, self._images + images
        return number

    def _tests(self, node: Node, domain: str) -> int:
        """Return how many test images of a domain a node can score. Whoever sees all sees as many as their own node."""
        return node.tests_of(domain) or max(other.tests_of(domain) for other in self.nodes if other.shared_test)

    def _candidates(self, place: int, domain: str) -> list[Node]:
        if self.everywhere and any(node.shared_test and node.tests_of(domain) for node in self.nodes):
            return [node for node in self.nodes if node.shared_test]
        own = [node for node in self.nodes if domain in node.domains and node.tests_of(domain) > 0]
        if domain in self._held:
            most = announced.most_scored([node.tests_of(domain) for node in own], self.max_images)
            return [node for node in own if node.tests_of(domain) <= most]
        elsewhere = [node for node in self.nodes if node.shared_test and node.tests_of(domain) > 0]
        turn = place % len(elsewhere) if elsewhere else 0
        return elsewhere[turn:] + elsewhere[:turn]

    def _ask(self, tasks_of: dict[Node, list[_Task]]) -> Questions:
        """Give each open part to a node. A node gets one part of a domain at a time, as its answer has one place."""
        lost = {task.part.domain for task in self._tasks if task.divided and not task.answer and not task.untried}
        busy: set[tuple[Node, str]] = set()
        for task in self._tasks:
            domain = task.part.domain
            free = [node for node in task.untried if (node, domain) not in busy]
            if task.answer or domain in lost or not free:
                continue
            node = next((node for node in free if node not in self._failed), free[0])
            task.untried.remove(node)
            busy.add((node, domain))
            tasks_of.setdefault(node, []).append(task)
        self._asked = tasks_of
        return {node: [task.part for task in tasks] for node, tasks in tasks_of.items()}


def sample_size(images: int, batch: int, share: float, least_left: int) -> int:
    """Return how many of so many images to score: the share, rounded up to whole batches.

    They are all where fewer than ``least_left`` would be left, which scores of the sample and of all would tell of.
    """
    number = math.ceil(share * images / batch) * batch
    return images if number > images - least_left else number


def divide(images: int, batch: int, nodes: int) -> list[tuple[int, int]]:
    """Cut images into at most ``nodes`` equal parts of whole batches, ``MIN_BATCHES`` or more each.

    Returns:
        Start and stop of each part, in their order; they cover all images once.
    """
    batches = math.ceil(images / batch)
    number = max(1, min(nodes, batches // MIN_BATCHES))
    edges = [i * batches // number * batch for i in range(number)]
    return list(zip(edges, [*edges[1:], images], strict=True))


def _answer(node: Node, metrics: Mapping[str, Any], task: _Task, scores: tuple[str, ...]) -> Answer:
    """Return what a node says of one part."""
    domain = task.part.domain
    score = DomainScore.from_numbers(metrics, domain, scores)
    if score.count != len(task.part):
        raise Refused(f"{score.count:g} images scored in domain {domain!r}, asked were {len(task.part)}")
    return Answer(node, task.part, score)
