"""I2PFL client [Le et al., 2025].

Paper: "Mitigating Domain Shift in Federated Learning via Intra- and Inter-Domain Prototypes", Huy Q. Le,
Ye Lin Tun, Yu Qiao, Minh N. H. Nguyen, Keon Oh Kim, Choong Seon Hong; https://arxiv.org/abs/2501.08521
(equations 2, 6-10). Reference code: none published.

Symbols: h features, g global prototypes, p~ augmented prototypes, gamma the MixUp weight, tau temperature.

Deviations, all switchable: (1) APA aligns each sample with a detached target, mean over the D dimensions (the
recovered form of Eq. 9 sums squared norms of class means over classes: ``apa_level``, ``apa_reduction``, ``apa_dist``,
``apa_stopgrad``); (2) augmented prototypes come from the batch, where the paper stores those of the whole class set
(``augproto_scope``); (3) one gamma per sample (``gamma_per``); (4) noise for "differential privacy" (Table VI) is on
class means (``dp``), without an accounted guarantee.

B batch, C classes, D feature width.
"""

import math
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedshift_clients.losses.common import class_means, prototype_contrast
from fedshift_clients.losses.styles import blended
from fedshift_clients.methods.common import keep, kept, labelled_prototypes
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.phases import PROTOTYPES
from fedshift_clients.training.prototypes import PrototypeClient
from fedshift_core.arrays import Arrays
from fedshift_core.methods.i2pfl import I2PFLParams
from fedshift_core.seeding import generator


def other_class_partner(y: Tensor, scores: Tensor) -> Tensor:
    """Choose for each sample a random sample of a different class (I2PFL, Eq. 7).

    Args:
        y: Labels (B,).
        scores: Uniform random numbers (B, B).

    Returns:
        Indices j (B,); j = i where the batch has no other class (methods A7).
    """
    other = y[:, None] != y  # B x B
    partner = scores.masked_fill(~other, -1.0).argmax(dim=1)
    return torch.where(other.any(dim=1), partner, torch.arange(len(y), device=y.device))


def prototype_alignment(
    features: Tensor,
    y: Tensor,
    targets: Tensor,
    present: Tensor,
    *,
    level: Literal["sample", "class_mean"],
    reduction: Literal["mse_mean", "class_sum"],
    distance: Literal["l2sq", "l2"] = "l2sq",
) -> Tensor:
    r"""Pull features to the augmented prototype of their class (I2PFL, Eq. 9, APA).

    ``sample`` / ``mse_mean`` is the working form :math:`\frac1B\sum_i\mathrm{MSE}(h_i,\tilde p^{y_i})`;
    ``class_mean`` compares class means (methods A10b); ``class_sum`` is
    :math:`\sum_k\|\cdot\|_2^2` as recovered, samples averaged within their class (A10).

    Args:
        features: h, (B, D).
        y: Labels (B,).
        targets: p~, (C, D); detach it for the stop-gradient form.
        present: Classes that have a target, (C,), bool.
        level: Align each sample, or the class means of the batch.
        reduction: Mean over samples (or classes) and dimensions, or sum over classes of squared norms.
        distance: ``l2`` takes the root of what stands for each sample (or class); its gradient at distance 0 is 0.

    Returns:
        A scalar; 0 if no class of the batch has a target.
    """
    means, counts = class_means(features, y, len(targets))
    in_batch = (counts > 0) & present  # C
    if level == "class_mean":
        apart = (means - targets.float()) * in_batch[:, None]  # C x D
        weight = in_batch.float()
    else:
        apart = (features.float() - targets.float()[y]) * present[y][:, None]  # B x D
        weight = present[y].float()
        if reduction == "class_sum":
            weight = weight / counts[y].clamp(min=1)
    mean = reduction == "mse_mean"
    if distance == "l2":
        size = torch.linalg.vector_norm(apart, dim=1) / math.sqrt(apart.shape[1] if mean else 1)
    else:
        size = apart.square().mean(dim=1) if mean else apart.square().sum(dim=1)
    total: Tensor = (size * weight).sum()
    return total / weight.sum().clamp(min=1) if mean else total


AUGMENTED = "augmented-"  # prefix in a node's memory: of sums of h~ over the last epoch (C, D), of their counts (C,)


class I2PFLClient(PrototypeClient[I2PFLParams]):
    """Cross-entropy + lambda1 * APA + lambda2 * GPCL (Eq. 10); contributes class prototypes (Eq. 2)."""

    _mixup: ClassVar[str] = "i2pfl-mixup"

    def start_round(self, server_round: int) -> None:
        """Read the global prototypes and draw this round's generators."""
        self._sent = labelled_prototypes(self)  # P x D, P; or None before the first round (A1)
        self._partner_rng = self.torch_rng(self._mixup, server_round)
        self._gamma_rng = generator(self.setup.seed, self._mixup, self.setup.index, server_round)
        purposes = ("i2pfl-class-set-order", "i2pfl-class-set-view")
        self._class_set_rngs = [self.torch_rng(purpose, server_round) for purpose in purposes]
        held = kept(self, AUGMENTED, ("sums", "counts"))
        self._stored = tuple(tensor.to(self.setup.device) for tensor in held.values())
        self._running: tuple[Tensor, ...] = ()  # sums (C, D) and counts (C,) of h~, if any

    def start_epoch(self, epoch: int) -> None:
        """Make the targets of this epoch: of the whole class set, or of the sums of the epoch before."""
        super().start_epoch(epoch)
        if self.params.augproto_scope == "class_set":
            self._stored = self._of_class_set()
            self.passed(PROTOTYPES)
        if self.params.augproto_scope == "epoch" and self._running:
            self._stored = self._running
        self._running = ()

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return the terms of Eq. 10 next to cross-entropy, weighted."""
        p = self.params
        terms: Terms = {}
        if p.use_apa and p.lambda1 > 0:  # Eq. 9 against the augmented mean of the configured scope (Eq. 8)
            mixed = features if p.augproto_scope == "class_set" else self._mixed_features(features, batch)  # B x D
            if p.augproto_scope in ("epoch", "round"):
                self._accumulate(mixed, batch.y)
            targets, present = self._targets(mixed, batch.y)
            targets = targets.detach() if p.apa_stopgrad else targets
            terms["apa"] = p.lambda1 * prototype_alignment(
                features, batch.y, targets, present, level=p.apa_level, reduction=p.apa_reduction, distance=p.apa_dist
            )
        if p.use_gpcl and p.lambda2 > 0 and self._sent is not None:
            terms["gpcl"] = p.lambda2 * prototype_contrast(features, batch.y, *self._sent, p.tau)
        return terms

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute class prototypes (Eq. 2, methods A14): p, or with ``dp`` p + q N(0, s^2), (1 - q) p + N(0, s^2).

        The noise (A13) is on the mean of a class, whatever the class's size. Nothing bounds a single image's
        share in p, so that no differential-privacy guarantee can be accounted for. It is drawn from the system's
        entropy: from the run's seed, the server could draw it again and subtract it (``repeatable_noise``).
        """
        if self.params.augproto_scope == "round" and self._running:
            keep(self, AUGMENTED, dict(zip(("sums", "counts"), self._running, strict=True)))
        sent, p = super().finish_round(server_round), self.params
        if p.dp == "off":
            return sent
        mean = sent["prototypes"]
        noise = self.protecting_rng("i2pfl-dp", server_round).normal(0.0, p.dp_scale, mean.shape)
        noisy = mean + p.dp_q * noise if p.dp == "add" else (1 - p.dp_q) * mean + noise
        return sent | {"prototypes": np.where(sent["counts"][:, None] > 0, noisy, 0.0).astype(np.float32)}

    def _of_class_set(self) -> tuple[Tensor, ...]:
        """Mix all of the node's images once, as training sees them. Return sums (C, D) and counts (C,) of h~ (Eq. 8).

        Weights and BatchNorm's statistics are afterwards as they were.
        """
        self._running = ()
        if not (self.params.use_apa and self.params.lambda1 > 0):
            return ()
        order, view = self._class_set_rngs
        with self.kept_weights(), torch.no_grad():
            for batch in self.augmented_batches(self.train_set, self.setup.train.batch_size, 1, order, view, view):
                features, _ = self.forward(batch.x)
                self._accumulate(self._mixed_features(features, batch), batch.y)
        return self._running

    def _mixed_features(self, features: Tensor, batch: Batch) -> Tensor:
        """MixUp with a sample of another class (Eq. 7): of features, of images (A16), or none."""
        p = self.params
        if p.intra_proto == "none_mixup":
            return features
        scores = torch.rand(len(batch.y), len(batch.y), generator=self._partner_rng).to(features.device)
        partner = other_class_partner(batch.y, scores)
        drawn = self._gamma_rng.beta(p.alpha, p.alpha, size=len(batch.y) if p.gamma_per == "sample" else 1)
        drawn = np.broadcast_to(np.maximum(drawn, 1 - drawn) if p.gamma_max else drawn, len(batch.y))
        gamma = torch.from_numpy(drawn.astype(np.float32)).to(features.device)  # B
        if p.intra_proto == "feature_mixup":
            return blended(features, features[partner], gamma)
        with torch.set_grad_enabled(not p.apa_stopgrad):
            return self.encode(blended(batch.x, batch.x[partner], gamma))

    def _targets(self, mixed: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return p~ (C, D) and which classes have one (C,).

        Scopes ``epoch`` and ``round`` fall back to the batch where nothing is stored yet.
        """
        if not self._stored:
            means, counts = class_means(mixed, y, self.model.num_classes)
        else:
            sums, counts = self._stored
            means = sums / counts.clamp(min=1)[:, None]
        return means, counts > 0

    def _accumulate(self, mixed: Tensor, y: Tensor) -> None:
        mixed, classes = mixed.detach(), self.model.num_classes
        sums, counts = self._running or (mixed.new_zeros(classes, mixed.shape[1]), y.new_zeros(classes))
        self._running = (sums.index_add(0, y, mixed), counts + torch.bincount(y, minlength=classes))
