"""Hints before a run: whether it would be faster without Flower's simulation, and whether networks follow domains."""

from fedshift_app.config.sections import RunConfig
from fedshift_clients.models.catalog import NETWORKS
from fedshift_core.limits import some

MANY = 20  # clients that train in a round
SHORT = 500  # images that one of them passes through its network in a round
MOST_PAIRS = 5  # domains of a line
SMALL = 32  # pixels: networks for no other images are the two and three layers of the CNNs


def faster_inline(config: RunConfig, nodes: int, images: float) -> str:
    """Return a line of advice if messages between processes will take most of the time, else an empty one.

    That happens where many clients train in a round, each a small network on few images: their work is of the order
    of what it costs to bring it there through Flower and Ray.

    Args:
        config: The run.
        nodes: How many nodes there are.
        images: How many training images one of them holds, on average.
    """
    clients, passed = max(1, round(config.federation.participation * nodes)), images * config.train.epochs
    sizes = [NETWORKS[name].size or SMALL + 1 for name in config.model.per_node or (config.model.name,)]
    if clients < MANY or passed > SHORT or max(sizes) > SMALL:
        return ""
    return (
        f"hint: {clients} clients a round, each with a small network and {passed:.0f} images to pass, "
        "wait for messages most of the time; engine=inline would be much faster, with the same numbers"
    )


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
