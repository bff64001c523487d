"""BatchNorm as Tent and EATA have it at test time: which layers may adapt, and entropy of predictions."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift_clients.training import statistics
from fedshift_core.errors import ConfigError


class BatchNormTuning:
    """Predicts batch after batch, each normalised by its own statistics; scale and shift of BatchNorm may learn.

    Args:
        model: What holds the BatchNorm layers. It is changed: put it back, or make it anew, for a fresh start.
        predict: Its logits (B, C) of images, with gradients to its weights.
        who: The adaptation, for messages.

    Raises:
        ConfigError: If there is no BatchNorm with scale and shift, or all of it is frozen.
    """

    def __init__(self, model: nn.Module, predict: Callable[[Tensor], Tensor], who: str) -> None:
        self._model, self._predict = model, predict
        self._norms = adaptable(model, who)
        self._tuned = [weight for norm in self._norms for weight in norm.parameters()]
        model.eval().requires_grad_(False)
        for weight in self._tuned:
            weight.requires_grad_(True)

    def _logits(self, images: Tensor) -> Tensor:
        """Return the logits (B, C) of two images or more."""
        with statistics.by_batch(self._model, self._norms):
            return self._predict(images)


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
    scaled = {name: norm for name, norm in statistics.layers(model).items() if norm.affine}
    needs = f"{who} adapts BatchNorm's scale and shift"
    if not scaled:
        raise ConfigError(f"{needs}, and {network} has no BatchNorm; t3a needs none")
    free = [norm for name, norm in scaled.items() if f"{name}.weight" not in frozen]
    if not free:
        raise ConfigError(f"{needs}, and all BatchNorm of {network} is frozen (model.freeze); t3a needs none")
    return free


def entropy(logits: Tensor) -> Tensor:
    r"""Return the entropy of each image's prediction, in nats.

    .. math:: H_i=-\sum_k p_{ik}\log p_{ik},\quad p_i=\operatorname{softmax}(l_i)

    Args:
        logits: l, (B, C).

    Returns:
        H, (B,).
    """
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)
