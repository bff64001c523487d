"""Says in a few lines which run is about to start."""

from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_core.plural import plural
from fedshift_core.rounds import INITIAL_MODEL
from fedshift_strategies.features.catalog import Features
from fedshift_strategies.federation.roster import Node

NAMED_NODES = 20  # of a domain; of more only the number is said


def describe(config: RunConfig, engine: str, nodes: list[Node], features: Features | None = None) -> str:
    """Return a few lines that say what is about to run, which node holds which domain, and what features do."""
    held: dict[str, list[Node]] = {domain: [] for domain in config.dataset.domains}
    for n in nodes:
        for domain in n.domains:
            held[domain].append(n)
    epochs = plural(config.train.epochs, "local epoch")
    rounds = f"{plural(config.rounds, 'round')} of {epochs}" if config.rounds else "no training (rounds=0)"
    what = registry.label(config.method["name"]) if config.rounds else INITIAL_MODEL
    lines = [
        f"{config.experiment}: {what} on {config.dataset.name}, {config.model.name}, "
        f"bn={config.model.bn}, {plural(len(nodes), 'node')}, {rounds}, seed {config.seed}, engine {engine}",
        *(f"  {domain}: {_held_by(who)}" for domain, who in held.items()),
    ]
    if approximation := registry.approximation_line(config.method["name"]):
        lines.append(f"  {approximation}")
    if config.evaluate.fraction < 1:
        lines.append(
            f"  before the last {plural(config.evaluate.last, 'round')} accuracy is that on "
            f"{100 * config.evaluate.fraction:g} % of the test images, in whole batches"
        )
    lines += [f"  {line}" for line in (features.describe(nodes) if features is not None else ())]
    return "\n".join(lines)


def _held_by(nodes: list[Node]) -> str:
    """Return who holds a domain, each node by name while a line has room for that."""
    if not nodes:
        return "held by no node"
    if len(nodes) <= NAMED_NODES:
        return "node " + ", ".join(f"{n.index} ({plural(n.num_examples, 'image')}{_with_others(n)})" for n in nodes)
    sizes = [n.num_examples for n in nodes]
    return f"{plural(len(nodes), 'node')}, {min(sizes)} to {plural(max(sizes), 'image')} each, {sum(sizes)} in all"


def _with_others(node: Node) -> str:
    return f" of {plural(len(node.domains), 'domain')}" if node.held_tests else ""
