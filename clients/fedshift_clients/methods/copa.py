"""COPA client [Wu & Gong, 2021].

Paper: "Collaborative Optimization and Aggregation for Decentralized Domain Generalization and Adaptation", Guile Wu,
Shaogang Gong; ICCV 2021, pp. 6484-6493. Reference code: none of the authors; WenkeHuang/MarsFL at commit 581283b has
one by others (``Local/COPALocal.py``).

Symbols: z features, h_n the head of the node's domain, h_j the frozen heads of the other domains.

Deviations: (1) no hybrid of batch and instance normalisation: all methods share one network; (2) the part for domain
adaptation, which needs images of the target domain, is left out.

B batch, C classes, D feature width, M heads.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedshift_clients.base import DomainClient
from fedshift_clients.losses.imbalance import PLAIN, Classification
from fedshift_clients.methods.common import put, sent
from fedshift_clients.training.batches import Batch, Terms
from fedshift_core.methods.copa import CopaParams, Ensemble
from fedshift_core.wire.names import HEADS

Head = Mapping[str, Tensor]


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


class CopaClient(DomainClient[CopaParams]):
    """Cross-entropy by the own domain's head, which trains, and by those of the others, which do not."""

    _own: int | None = None  # which of the heads is that of the node's domain, as the server says

    def received(self) -> None:
        """Put the head of the node's domain into the model. The average that came with the weights is not used."""
        heads = self._sent_heads()
        self._own = self.place("head", len(heads))
        if self._own is not None:
            put(self.model.classifier, heads[self._own])

    def start_round(self, server_round: int) -> None:
        """Read the heads of the other domains."""
        self._others = [head for place, head in enumerate(self._sent_heads()) if place != self._own]

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return the losses by the other heads, weighted; none in a federation of one domain."""
        if self.params.lambda_others == 0 or not self._others:
            return {}
        others = others_loss(self.model.classifier, self._others, features, batch.y, self.cross_entropy)
        return {"others": self.params.lambda_others * others}

    def predict(self, x: Tensor) -> Tensor:
        """Return what all heads say together, and right after local training what the node's own does."""
        features, logits = self.forward(x)
        heads = [] if self.trained_here else self._sent_heads()
        if not heads:
            return logits
        if self._own is not None:  # as it is now: an adaptation may have changed it
            heads[self._own] = dict(self.model.classifier.state_dict())
        each = [logits_by(self.model.classifier, head, features) for head in heads]
        return ensemble(torch.stack(each), self.params.ensemble)

    def _sent_heads(self) -> list[dict[str, Tensor]]:
        """Return the heads that the server sent, one of a domain; none where it sent none."""
        named = sent(self, HEADS)
        number = len(next(iter(named.values()))) if named else 0
        return [{name: tensor[place] for name, tensor in named.items()} for place in range(number)]
