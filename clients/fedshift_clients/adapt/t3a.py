"""T3A: a classifier that is adjusted at test time [Iwasawa & Matsuo, 2021].

Paper: "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization", Yusuke Iwasawa, Yutaka
Matsuo, NeurIPS 2021. Reference code: matsuolab/T3A at commit ff8cde5.

Each class has a set of supports, which begins with its row of the classifier's weights. The features of a batch join
the classes that the classifier predicts; of each class those of the lowest entropies stay, M at most. An image is
predicted by the inner products of its features with the mean direction of each class's supports, its own among them.
No weight changes and nothing is differentiated: it needs no BatchNorm.

Deviations: (1) M = all is a setting of its own (the code's for it, -1, drops the least sure support of each class at
each batch); (2) where a method classifies in a way of its own (``predict``), that says the class and the entropy.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.adapt.batchnorm import entropy
from fedshift_clients.adapt.params import T3AParams
from fedshift_clients.adapt.stream import Predictor, Stream
from fedshift_clients.models.networks import SplitModel, before_last
from fedshift_clients.training.settings import ModelConfig
from fedshift_clients.training.trainer import LocalTrainer
from fedshift_core.errors import ConfigError


class T3A:
    """Predicts images (B, 3, H, W) batch after batch, and lets each adjust the classifier.

    Args:
        classifier: The network's linear layer, of weights (C, E); it is not changed, and what is before it stays.
        encode: Features (B, D) and logits (B, C) of images.
        classify: Their logits without adjustment, where these are others.
        supports: M, or None for all.
    """

    def __init__(
        self,
        classifier: nn.Linear,
        encode: Callable[[Tensor], tuple[Tensor, Tensor]],
        classify: Predictor | None = None,
        supports: int | None = 50,
    ) -> None:
        rows = classifier.weight.detach().float()
        bias = None if classifier.bias is None else classifier.bias.detach().float()
        logits = F.linear(rows, rows, bias)
        self._classifier, self._encode, self._classify, self._most = classifier, encode, classify, supports
        self._supports, self._labels, self._entropies = rows, logits.argmax(dim=1), entropy(logits)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return the adjusted logits (B, C)."""
        features, logits = self._encode(x)
        if self._classify is not None:
            logits = self._classify(x)
        features, classes = before_last(self._classifier, features), logits.shape[1]
        self._supports = torch.cat((self._supports, features))
        self._labels = torch.cat((self._labels, logits.argmax(dim=1)))
        self._entropies = torch.cat((self._entropies, entropy(logits)))
        if self._most is not None:
            order = torch.argsort(self._entropies, stable=True)
            surest = torch.cat([order[self._labels[order] == k][: self._most] for k in range(classes)])
            self._supports, self._labels = self._supports[surest], self._labels[surest]
            self._entropies = self._entropies[surest]
        sums = features.new_zeros(classes, features.shape[1])
        sums.index_add_(0, self._labels, F.normalize(self._supports, dim=1))
        return features @ F.normalize(sums, dim=1).T


class T3AAdaptation(Stream[T3AParams]):
    """T3A ahead of a score."""

    name = "t3a"
    keeps_frozen = True

    def check_model(self, model: SplitModel, config: ModelConfig) -> None:
        """Refuse a classifier that does not end in a linear layer."""
        classifier: nn.Module = model.classifier
        if not isinstance(classifier, nn.Linear):
            kind = type(classifier).__name__
            raise ConfigError(
                f"adapt.name=t3a adjusts a linear classifier; that of the network {config.name} is {kind}"
            )

    def predictor(self, client: LocalTrainer) -> Predictor:
        """Return T3A on the client's encoder and classifier."""
        classify = None if type(client).predict is LocalTrainer.predict else client.as_scored(client.predict)
        return T3A(client.model.classifier, client.as_scored(client.forward), classify, self.params.supports)
