"""FedPall client [Zhang et al., 2025].

Paper: "FedPall: Prototype-based Adversarial and Collaborative Learning for Federated Learning with Feature Drift",
Yong Zhang, Feng Liang, Guanghu Yuan, Min Yang, Chengming Li, Xiping Hu, ICCV 2025; https://arxiv.org/abs/2507.04781.
Reference code: DistriAI/FedPall, commit e08e675 (``exps/update.py``, ``update_weights_ours_debug``).

Symbols: z features, G global prototypes, A the amplifier, which tells of which node a feature is, tau temperature.

The whole model stays on the node; its classifier is replaced by the server's at the beginning of a round. L = CE +
lambda_adv KL(uniform || A(z)) + lambda_con contrast of z with G.

Deviations: (1) prototypes and sent features are those of the model in evaluation mode (the code: training mode);
(2) the contrast has cosines above and below (``contrast``); (3) at most ``most_features`` images' features travel.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_clients.methods.common import put, sent
from fedshift_clients.methods.own_models import KeepsModel
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.prototypes import contribution, sent_prototypes
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedpall import Contrast, FedPallParams
from fedshift_core.wire.names import HEAD

EPS = 1e-5  # of BatchNorm


def amplifier(z: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    """Return what the amplifier makes of features: logits of the node that they are from.

    Three linear layers without bias, BatchNorm and ReLU between them; BatchNorm normalises by the batch.

    Args:
        z: Features, (B, D).
        weights: ``linear1`` (H, D), ``scale1``, ``shift1`` (H,), ``linear2`` (H, H), ``scale2``, ``shift2`` (H,) and
            ``linear3`` (N, H).

    Returns:
        (B, N).
    """
    for layer in ("1", "2"):
        z = z @ weights[f"linear{layer}"].T
        variance, mean = torch.var_mean(z, dim=0, correction=0)
        z = (z - mean) / torch.sqrt(variance + EPS) * weights[f"scale{layer}"] + weights[f"shift{layer}"]
        z = torch.relu(z)
    return z @ weights["linear3"].T


def confusion(logits: Tensor) -> Tensor:
    r"""Return how far the amplifier is from knowing nothing of the node, a mean over the batch.

    .. math:: KL(u\,\|\,\operatorname{softmax}(l))=-\log N-\frac1N\sum_n\log\operatorname{softmax}(l)_n

    Args:
        logits: l, (B, N).
    """
    uniform = torch.full_like(logits, 1 / logits.shape[1])
    return F.kl_div(logits.log_softmax(dim=1), uniform, reduction="batchmean")


def collaboration(
    z: Tensor, y: Tensor, prototypes: Tensor, present: Tensor, tau: float, form: Contrast = "cosine"
) -> Tensor:
    r"""Return the contrast with the global prototypes, a mean over the samples whose class has one; else 0.

    .. math:: -\log\frac{\exp(\cos(z,G^y)/\tau)}{\sum_k\exp(s_k/\tau)}

    with :math:`s_k=\cos(z,G^k)`, or as released the inner product of the unit feature with :math:`G^k`, which is
    shorter than 1: a mean of unit vectors.

    Args:
        z: Features, (B, D).
        y: Labels, (B,).
        prototypes: G, (C, D).
        present: Which classes have one, (C,).
        tau: Temperature.
        form: ``cosine`` or ``released``.
    """
    unit = F.normalize(z, dim=1)
    near = unit @ F.normalize(prototypes, dim=1).T / tau  # B x C
    others = near if form == "cosine" else unit @ prototypes.T / tau
    others = others.masked_fill(~present, float("-inf"))
    own = near.gather(1, y[:, None])[:, 0]
    held = present[y]  # B
    return ((torch.logsumexp(others, dim=1) - own) * held).sum() / held.sum().clamp(min=1)


AMPLIFIER = "amplifier/"  # prefix of the amplifier's arrays


class FedPallClient(KeepsModel[FedPallParams]):
    """Cross-entropy, against the amplifier, towards the global prototypes; contributes prototypes and features."""

    @classmethod
    def check_run(cls, params: FedPallParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse a classifier of two layers: the server trains one linear layer."""
        if params.take > 0 and model.head != "linear":
            raise ConfigError(f"method fedpall needs model.head=linear, found {model.head}: the server trains that one")

    def start_round(self, server_round: int) -> None:
        """Put the server's classifier into the model, and read amplifier and prototypes."""
        p, own = self.params, self.model.classifier.state_dict()
        if p.take > 0:
            head = sent(self, HEAD)
            put(self.model.classifier, {name: (1 - p.take) * own[name] + p.take * new for name, new in head.items()})
        self._amplifier = sent(self, AMPLIFIER)
        self._prototypes = sent_prototypes(self)

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return both terms, weighted; the contrast from round 2 on."""
        p = self.params
        terms: Terms = {}
        if p.lambda_adv > 0 and self._amplifier:
            terms["adv"] = p.lambda_adv * confusion(amplifier(features, self._amplifier))
        if p.lambda_con > 0 and self._prototypes is not None:
            near = collaboration(features, batch.y, *self._prototypes, p.tau, p.contrast)
            terms["con"] = p.lambda_con * near
        return terms

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute class prototypes, and mixed and masked features."""
        p = self.params
        if p.lambda_adv == p.lambda_con == p.take == 0:
            return {}
        contributed = contribution(*self.class_prototypes())
        return contributed | self._mixed(server_round) if p.lambda_adv > 0 or p.take > 0 else contributed

    def _mixed(self, server_round: int) -> Arrays:
        """Return features (P, D), mixed with the global prototypes of their classes and masked, and labels (P,).

        Images, share and mask are drawn from the system's entropy: from the run's seed, the server could draw them
        again and undo the mixing (``repeatable_noise``).
        """
        p, held = self.params, self.train_set
        rng = self.protecting_rng("fedpall-mix", server_round)
        if p.most_features < len(held):
            held = held.select(np.sort(rng.permutation(len(held))[: p.most_features]))
        z, _ = self.encoded(held, self.encode)  # P x D
        share = np.float32(round(rng.uniform(p.mix_from, p.mix_to), 2))
        mask = np.zeros(z.shape[1], np.float32)
        mask[rng.permutation(len(mask))[: int(len(mask) * p.kept)]] = 1
        features = z.cpu().numpy()
        if self._prototypes is not None:
            prototypes, present = (tensor.cpu().numpy() for tensor in self._prototypes)
            own = np.where(present[held.y], share, np.float32(1))[:, None]  # a class without a prototype: as it is
            features = own * features + (1 - own) * prototypes[held.y]
        return {"features": features * mask, "labels": held.y.astype(np.int64)}
