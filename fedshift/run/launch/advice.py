"""A hint before a run: whether networks follow domains."""

from fedshift_app.config.sections import RunConfig
from fedshift_core.limits import some

MOST_PAIRS = 5  # domains of a line


def network_by_domain(config: RunConfig, nodes: int) -> str:
    """Return a line of advice if all nodes of each domain have the same network and domains differ in theirs, else "".

    Domains and networks are both given in turn, so with four domains and two networks each domain gets one of them,
    and a score by domain is one by network.

    Args:
        config: The run.
        nodes: How many nodes there are.
    """
    of_domain: dict[str, set[str]] = {}
    for place, domain in enumerate(config.allocation.deal(config.dataset.domains, nodes, config.seed)):
        of_domain.setdefault(domain, set()).add(config.model.network_at(place))
    several = len(set().union(*of_domain.values())) > 1
    if not several or len(of_domain) == nodes or any(len(names) > 1 for names in of_domain.values()):
        return ""
    pairs = [f"{domain} {min(names)}" for domain, names in of_domain.items()]
    return (
        f"hint: all nodes of a domain have the same network ({some(pairs, MOST_PAIRS)}), so a score by domain is "
        "one by network; with the nodes of each domain given (allocation.counts) a domain has several networks"
    )
