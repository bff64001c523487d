"""The nodes' own models right after local training: on what each scores its own, and what comes of the answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedshift_core.limits import Refused
from fedshift_core.wire.names import LOCAL_CORRECT, LOCAL_COUNT, LOCAL_DOMAINS, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT
from strategies.federation.checks import right_of
from strategies.federation.context import Federation
from strategies.federation.evaluation import ClientScores
from strategies.federation.roster import Node
from strategies.federation.updates import Update


def asked_of(node: Node, federation: Federation) -> dict[str, list[str]]:
    """Return on which domains a node is to score its own model, as it is told: all whose test images it sees."""
    own = [node.domain] if node.num_test else []
    return {LOCAL_DOMAINS: list(federation.domains) if node.shared_test else own}


def read(
    updates: Sequence[Update], nodes: Sequence[Node], federation: Federation, leave_out: Callable[[Node, str], None]
) -> ClientScores:
    """Return what the nodes of a round say of their own models.

    Args:
        updates: Those of the round, of nodes that were asked.
        nodes: All nodes of the federation.
        federation: The run.
        leave_out: Is told of each node whose scores cannot be used.
    """
    accuracy: dict[int, dict[str, float]] = {}
    own: dict[int, float] = {}
    for update in updates:
        try:
            part = own_accuracy(update.metrics)
            domains = asked_of(update.node, federation)[LOCAL_DOMAINS]
            accuracy[update.node.index] = local_accuracy(update.metrics, domains)
            own |= {} if part is None else {update.node.index: part}
        except Refused as refused:
            leave_out(update.node, f"could not score its own model: {refused}")
    # No model was scored on what was drawn for another node.
    drawn = federation.own_tests
    return ClientScores(
        tuple(replace(node, shared_test=node.shared_test and not drawn) for node in nodes), accuracy, own
    )


def local_accuracy(metrics: Mapping[str, float], domains: list[str]) -> dict[str, float]:
    """Return the accuracy in percent of a node's own model on the domains that it was asked for.

    Raises:
        Refused: If the node says nothing of one.
    """
    found = {}
    for domain in domains:
        correct, count = right_of(metrics, LOCAL_CORRECT + domain, LOCAL_COUNT + domain)
        if not count:
            raise Refused(f"no numbers for domain {domain!r}")
        found[domain] = 100 * correct / count
    return found


def own_accuracy(metrics: Mapping[str, float]) -> float | None:
    """Return the accuracy in percent of a node's own model on its own part of the test images; None without one."""
    correct, count = right_of(metrics, LOCAL_OWN_CORRECT, LOCAL_OWN_COUNT)
    return 100 * correct / count if count else None
