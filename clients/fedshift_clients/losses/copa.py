"""Loss and prediction of COPA. B batch, C classes, D feature width, M heads."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedshift_clients.losses.imbalance import Classification, ClassLoss
from fedshift_core.methods.copa import Ensemble

Head = Mapping[str, Tensor]
PLAIN = ClassLoss()


def logits_by(classifier: nn.Module, head: Head, features: Tensor) -> Tensor:
    """Return the logits (B, C), in float32, of features (B, D) by another head. It has the form of ``classifier``."""
    with torch.autocast(features.device.type, enabled=False):
        if type(classifier) is nn.Linear:  # so that it can be traced, which functional_call cannot
            return functional.linear(features.float(), head["weight"], head["bias"])
        logits: Tensor = functional_call(classifier, dict(head), (features.float(),))
    return logits


def others_loss(
    classifier: nn.Module, heads: Sequence[Head], features: Tensor, y: Tensor, cross_entropy: Classification = PLAIN
) -> Tensor:
    r"""Have the features right by frozen heads of other domains: :math:`\sum_{j\ne n}\mathrm{CE}(h_j(z),y)`.

    Args:
        classifier: Gives the heads their form; its weights take no part.
        heads: Those of the other domains, without gradient; at least one.
        features: z, (B, D).
        y: Labels (B,).
        cross_entropy: As the run weighs classes.

    Returns:
        A scalar; each head's is the mean over the batch.
    """
    return torch.stack([cross_entropy(logits_by(classifier, head, features), y) for head in heads]).sum()


def ensemble(logits: Tensor, form: Ensemble) -> Tensor:
    r"""Return what several heads say together, as logits.

    Args:
        logits: Of each head, (M, B, C).
        form: ``probabilities``: :math:`\log\frac1M\sum_m\mathrm{softmax}(h_m(z))`; ``logits``: their mean, which
            for linear heads is the logits of the mean head.

    Returns:
        (B, C).
    """
    if form == "logits":
        return logits.mean(dim=0)
    return logits.log_softmax(dim=2).logsumexp(dim=0) - math.log(len(logits))
