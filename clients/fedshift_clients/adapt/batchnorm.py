"""BatchNorm as Tent and EATA have it at test time: which layers may adapt, and entropy of predictions."""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift_clients.training import statistics
from fedshift_core.errors import ConfigError


def adaptable(model: nn.Module, who: str, network: str = "this network") -> list[_BatchNorm]:
    """Return the BatchNorm layers whose scale and shift may change: those that are not frozen (``model.freeze``).

    Args:
        model: The network, with ``frozen`` if it has frozen parts.
        who: What wants to adapt them, for messages.
        network: What the network is called there.

    Raises:
        ConfigError: If there is none.
    """
    frozen: frozenset[str] = getattr(model, "frozen", frozenset())
    scaled = {
        name: [f"{name}.{own}" for own, _ in norm.named_parameters()]
        for name, norm in statistics.layers(model).items()
        if norm.affine
    }
    needs = f"{who} adapts BatchNorm's scale and shift"
    if not scaled:
        raise ConfigError(f"{needs}, and {network} has no BatchNorm; t3a needs none")
    free = [name for name, weights in scaled.items() if not frozen.intersection(weights)]
    if not free:
        raise ConfigError(f"{needs}, and all BatchNorm of {network} is frozen (model.freeze); t3a needs none")
    layers = statistics.layers(model)
    return [layers[name] for name in free]


def entropy(logits: Tensor) -> Tensor:
    r"""Return the entropy of each image's prediction, in nats.

    .. math:: H_i=-\sum_k p_{ik}\log p_{ik},\quad p_i=\operatorname{softmax}(l_i)

    Args:
        logits: l, (B, C).

    Returns:
        H, (B,).
    """
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
