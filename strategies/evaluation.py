"""Who evaluates which domain, and what comes of the answers."""

from collections.abc import Iterable

from flwr.app import Message, MetricRecord

from fedshift_wire import CORRECT, COUNT, LOSS_SUM, METRICS
from strategies.roster import Node

Questions = dict[Node, list[str]]


class Tally:
    """Correct predictions, images and summed loss by domain, over all nodes that answered."""

    def __init__(self, domains: tuple[str, ...]) -> None:
        self._sums = {domain: [0.0, 0.0, 0.0] for domain in domains}

    def add(self, domain: str, correct: float, count: float, loss_sum: float) -> None:
        """Add one node's answer for one domain."""
        for i, value in enumerate((correct, count, loss_sum)):
            self._sums[domain][i] += value

    def accuracy(self) -> dict[str, float | None]:
        """Return top-1 accuracy in percent; None for a domain without an answer."""
        return {domain: 100 * c / n if n else None for domain, (c, n, _) in self._sums.items()}

    def loss(self) -> dict[str, float | None]:
        """Return the mean cross-entropy; None for a domain without an answer."""
        return {domain: s / n if n else None for domain, (_, n, s) in self._sums.items()}


class Evaluation:
    """The questions of one round.

    Nodes that see a domain's whole test set (simulation) answer for it one at a time; nodes with a test
    part of their own (deployment) all answer, and their parts add up. With personal models every node
    of the domain answers in both engines. A held-out domain, of which there is no node, is put to the
    nodes in turn (to all of them where models are personal), which needs a whole test set on the node.
    """

    def __init__(self, domains: tuple[str, ...], nodes: list[Node], *, personal: bool) -> None:
        self._domains = domains
        self._personal = personal
        self._nodes = nodes
        self._asked: dict[int, tuple[Node, list[str]]] = {}
        self._untried = {domain: self._candidates(i, domain) for i, domain in enumerate(domains)}

    def first(self) -> Questions:
        """Return which node is asked for which domains."""
        return self._ask({domain: self._next(domain) for domain in self._domains})

    def replacements(self, tally: Tally) -> Questions:
        """Return whom to ask instead for the domains that still have no answer; empty if nobody is left."""
        missing = [domain for domain, value in tally.accuracy().items() if value is None]
        return self._ask({domain: self._next(domain) for domain in missing})

    def read(self, replies: Iterable[Message], tally: Tally) -> list[tuple[Node, str]]:
        """Add the answers to ``tally``; return the nodes that failed, each with the reason."""
        failed = []
        for reply in replies:
            node, domains = self._asked.pop(reply.metadata.src_node_id, (None, []))
            if node is None:
                continue
            problem = reply.error.reason if reply.has_error() else _add(reply, domains, tally)
            if problem:
                failed.append((node, problem))
        failed += [(node, "no answer in time") for node, _ in self._asked.values()]
        self._asked.clear()
        return failed

    def _candidates(self, place: int, domain: str) -> list[Node]:
        own = [node for node in self._nodes if node.domain == domain and node.num_test > 0]
        if own or any(node.domain == domain for node in self._nodes):
            return own
        elsewhere = [node for node in self._nodes if node.shared_test]
        turn = place % len(elsewhere) if elsewhere else 0
        return elsewhere[turn:] + elsewhere[:turn]

    def _next(self, domain: str) -> list[Node]:
        left = self._untried[domain]
        take = len(left) if self._personal or not all(node.shared_test for node in left) else min(1, len(left))
        chosen, self._untried[domain] = left[:take], left[take:]
        return chosen

    def _ask(self, nodes_of: dict[str, list[Node]]) -> Questions:
        questions: Questions = {}
        for domain, nodes in nodes_of.items():
            for node in nodes:
                questions.setdefault(node, []).append(domain)
        self._asked = {node.node_id: (node, domains) for node, domains in questions.items()}
        return questions


def _add(reply: Message, domains: list[str], tally: Tally) -> str | None:
    """Add one reply; return what is wrong with it, in which case nothing is added."""
    metrics = reply.content.get(METRICS)
    if not isinstance(metrics, MetricRecord):
        return f"the reply lacks the record {METRICS!r}"
    answers = []
    for domain in domains:
        values = [metrics.get(key + domain) for key in (CORRECT, COUNT, LOSS_SUM)]
        if not all(isinstance(value, int | float) for value in values):
            return f"no numbers for domain {domain!r}"
        correct, count, loss_sum = (float(value) for value in values if isinstance(value, int | float))
        if not 0 <= correct <= count:
            return f"{correct:g} correct of {count:g} in domain {domain!r}"
        answers.append((domain, correct, count, loss_sum))
    for answer in answers:
        tally.add(*answer)
    return None
