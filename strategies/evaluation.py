"""Who evaluates which domain, and what comes of the answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message, MetricRecord

from fedshift_wire import (
    CORRECT,
    COUNT,
    LOCAL_CORRECT,
    LOCAL_COUNT,
    LOCAL_OWN_CORRECT,
    LOCAL_OWN_COUNT,
    LOSS_SUM,
    METRICS,
    OTHER_CORRECT,
    VALIDATION_CORRECT,
    VALIDATION_COUNT,
)  # fmt: skip
from strategies.prototypes import Refused
from strategies.roster import Node

Questions = dict[Node, list[str]]


@dataclass(frozen=True)
class ClientScores:
    """How well the nodes' own models did right after local training, before they were averaged.

    Attributes:
        nodes: All nodes of the federation, in the order of their index.
        accuracy: Top-1 accuracy in percent, by index of the node and by domain; only what was told.
        own: Accuracy on the node's own test set, by index, where that is only a part of its domain's.
    """

    nodes: tuple[Node, ...]
    accuracy: dict[int, dict[str, float]]
    own: dict[int, float] = field(default_factory=dict)


class Tally:
    """Correct predictions, images and summed loss by domain, over all nodes that answered."""

    def __init__(self, domains: tuple[str, ...]) -> None:
        self._sums = {domain: [0.0, 0.0, 0.0] for domain in domains}
        self._others: dict[str, dict[str, list[float]]] = {}

    def add(self, domain: str, correct: float, count: float, loss_sum: float) -> None:
        """Add one node's answer for one domain."""
        for i, value in enumerate((correct, count, loss_sum)):
            self._sums[domain][i] += value

    def add_other(self, name: str, domain: str, correct: float, count: float) -> None:
        """Add one node's answer for one domain, scored in another way."""
        sums = self._others.setdefault(name, {known: [0.0, 0.0] for known in self._sums})[domain]
        sums[0], sums[1] = sums[0] + correct, sums[1] + count

    def others(self) -> dict[str, dict[str, float | None]]:
        """Return top-1 accuracy in percent by way of scoring and by domain."""
        return {
            name: {domain: 100 * c / n if n else None for domain, (c, n) in by_domain.items()}
            for name, by_domain in sorted(self._others.items())
        }

    def accuracy(self) -> dict[str, float | None]:
        """Return top-1 accuracy in percent; None for a domain without an answer."""
        return {domain: 100 * c / n if n else None for domain, (c, n, _) in self._sums.items()}

    def loss(self) -> dict[str, float | None]:
        """Return the mean cross-entropy; None for a domain without an answer."""
        return {domain: s / n if n else None for domain, (_, n, s) in self._sums.items()}


class Evaluation:
    """The questions of one round.

    Nodes that see a domain's whole test set (simulation) answer for it one at a time; nodes with a test
    part of their own (deployment) all answer, and their parts add up. With personal models, and with test
    sets drawn for each node, every node of the domain answers in both engines. A held-out domain, of which
    there is no node, is put to the nodes in turn (to all of them in those two cases), which needs a whole
    test set on the node.

    Attributes:
        validating: The nodes to ask now are to score their validation parts as well; with the first
            questions only, which then go to all nodes.
        validation: Answers about validation parts, each under the domain of its node.
    """

    def __init__(
        self,
        domains: tuple[str, ...],
        nodes: list[Node],
        *,
        personal: bool,
        own_tests: bool = False,
        validation: bool = False,
    ) -> None:
        self.validating = validation
        self.validation = Tally(domains)
        self._domains = domains
        self._everyone = personal or own_tests
        self._nodes = nodes
        self._asked: dict[int, tuple[Node, list[str]]] = {}
        self._untried = {domain: self._candidates(i, domain) for i, domain in enumerate(domains)}

    def first(self) -> Questions:
        """Return which node is asked for which domains; for none where only its validation part is asked for."""
        questions: Questions = {node: [] for node in self._nodes} if self.validating else {}
        return self._ask(questions, {domain: self._next(domain) for domain in self._domains})

    def replacements(self, tally: Tally) -> Questions:
        """Return whom to ask instead for the domains that still have no answer; empty if nobody is left."""
        missing = [domain for domain, value in tally.accuracy().items() if value is None]
        return self._ask({}, {domain: self._next(domain) for domain in missing})

    def read(self, replies: Iterable[Message], tally: Tally) -> list[tuple[Node, str]]:
        """Add the answers to ``tally``; return the nodes that failed, each with the reason."""
        failed = []
        for reply in replies:
            node, domains = self._asked.pop(reply.metadata.src_node_id, (None, []))
            if node is None:
                continue
            try:
                self._add(node, reply, domains, tally)
            except Refused as refused:
                failed.append((node, str(refused)))
        failed += [(node, "no answer in time") for node, _ in self._asked.values()]
        self._asked.clear()
        self.validating = False
        return failed

    def _add(self, node: Node, reply: Message, domains: list[str], tally: Tally) -> None:
        """Add one reply, or nothing of it if anything is wrong with it."""
        if reply.has_error():
            raise Refused(reply.error.reason)
        metrics = reply.content.get(METRICS)
        if not isinstance(metrics, MetricRecord):
            raise Refused(f"the reply lacks the record {METRICS!r}")
        answers = [(domain, *_answer(metrics, domain)) for domain in domains]
        others = [other for domain in domains for other in _other_answers(metrics, domain)]
        validated = _right_of(metrics, VALIDATION_CORRECT, VALIDATION_COUNT) if self.validating else (0.0, 0.0)
        for answer in answers:
            tally.add(*answer)
        for other in others:
            tally.add_other(*other)
        self.validation.add(node.domain, *validated, 0.0)

    def _candidates(self, place: int, domain: str) -> list[Node]:
        own = [node for node in self._nodes if node.domain == domain and node.num_test > 0]
        if own or any(node.domain == domain for node in self._nodes):
            return own
        elsewhere = [node for node in self._nodes if node.shared_test]
        turn = place % len(elsewhere) if elsewhere else 0
        return elsewhere[turn:] + elsewhere[:turn]

    def _next(self, domain: str) -> list[Node]:
        left = self._untried[domain]
        take = len(left) if self._everyone or not all(node.shared_test for node in left) else min(1, len(left))
        chosen, self._untried[domain] = left[:take], left[take:]
        return chosen

    def _ask(self, questions: Questions, nodes_of: dict[str, list[Node]]) -> Questions:
        for domain, nodes in nodes_of.items():
            for node in nodes:
                questions.setdefault(node, []).append(domain)
        self._asked = {node.node_id: (node, domains) for node, domains in questions.items()}
        return questions


def local_accuracy(metrics: Mapping[str, float], domains: list[str]) -> dict[str, float]:
    """Return the accuracy in percent of a node's own model on the domains that it was asked for.

    Raises:
        Refused: If the node's numbers make no sense.
    """
    found = {}
    for domain in domains:
        correct, count = _right_of(metrics, LOCAL_CORRECT + domain, LOCAL_COUNT + domain)
        if not count:
            raise Refused(f"no numbers for domain {domain!r}")
        found[domain] = 100 * correct / count
    return found


def own_accuracy(metrics: Mapping[str, float]) -> float | None:
    """Return the accuracy in percent of a node's own model on its own part of the test images; None without one.

    Raises:
        Refused: If the node's numbers make no sense.
    """
    correct, count = _right_of(metrics, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT)
    return 100 * correct / count if count else None


def _answer(metrics: MetricRecord, domain: str) -> tuple[float, float, float]:
    """Return correct, count and summed loss of one domain."""
    values = [metrics.get(key + domain) for key in (CORRECT, COUNT, LOSS_SUM)]
    if not all(isinstance(value, int | float) for value in values):
        raise Refused(f"no numbers for domain {domain!r}")
    correct, count, loss_sum = (float(value) for value in values if isinstance(value, int | float))
    if not 0 <= correct <= count:
        raise Refused(f"{correct:g} correct of {count:g} in domain {domain!r}")
    return correct, count, loss_sum


def _other_answers(metrics: MetricRecord, domain: str) -> list[tuple[str, str, float, float]]:
    """Return what a node scored in another way: name, domain, correct, count."""
    found = []
    for key in metrics:
        name, _, told = key.removeprefix(OTHER_CORRECT).partition("/")
        if key.startswith(OTHER_CORRECT) and told == domain:
            found.append((name, domain, *_right_of(metrics, key, COUNT + domain)))
    return found


def _right_of(metrics: Mapping[str, Any], correct_name: str, count_name: str) -> tuple[float, float]:
    """Return how many were right of how many; 0 of 0 where the node says nothing."""
    correct, count = (metrics.get(name, 0.0) for name in (correct_name, count_name))
    if not isinstance(correct, int | float) or not isinstance(count, int | float) or not 0 <= correct <= count:
        raise Refused(f"{correct_name} {correct} of {count}")
    return float(correct), float(count)
