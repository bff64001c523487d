"""A rule of thumb: whether a run would be much faster without Flower's simulation engine."""

from clients.models.catalog import NETWORKS
from fedshift_app.config.sections import RunConfig
from fedshift_core.plural import plural

MANY = 20  # clients that train in a round
SHORT = 500  # images that one of them passes through its network in a round
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
    clients = max(1, round(config.federation.participation * nodes))
    passed = images * config.train.epochs
    names = config.model.per_node or (config.model.name,)
    small = all((NETWORKS[name].size or SMALL + 1) <= SMALL for name in names)
    if clients < MANY or passed > SHORT or not small:
        return ""
    return (
        f"hint: {plural(clients, 'client')} a round, each with a small network and {passed:.0f} images to pass, "
        "wait for messages most of the time; engine=inline would be much faster, with the same numbers"
    )
