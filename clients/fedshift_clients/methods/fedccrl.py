"""FedCCRL client [Wang and Tang, 2024].

Paper: "FedCCRL: Federated Domain Generalization with Cross-Client Representation Learning", Xinpeng Wang, Xiaoying
Tang; arXiv 2410.11267. Reference code: SanphouWang/FedCCRL at commit 60b2d9b (``algorithm/client/fedccrl.py``,
``model/models.py``).

Symbols: mu, sigma (B, 3) means and deviations of an image's channels, lambda ~ Beta(alpha, alpha) one number an image,
tau temperature.

Deviations: (1) nodes tell statistics of images once, before round 1, where the code draws other images in each round;
(2) they are of the images as they are, and mixed into images after the run's augmentation, which the code's experiments
have none of; (3) values outside 0 to 255 are cut and the others rounded before AugMix, where the code's conversion to
bytes wraps round and cuts decimals; (4) a node tells of at most 2000 images; (5) where no other node tells of any,
an image keeps its style.

B batch, D feature width, C classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_clients.base import DomainClient
from fedshift_clients.losses.contrast import supervised_contrast
from fedshift_clients.modules import mixstyle
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedccrl import FedCCRLParams
from fedshift_core.seeding import generator

LEAST_SHARE = 1e-7  # of the mean prediction, of which the logarithm is taken; the code's


def divergence(logits: Sequence[Tensor]) -> Tensor:
    r"""Return the Jensen-Shannon divergence between the predictions for an image and for its copies.

    .. math:: \frac1{KB}\sum_i\sum_k\sum_c p^k_{ic}(\log p^k_{ic}-\log M_{ic}),\quad M=\frac1K\sum_k p^k

    Args:
        logits: K times (B, C).

    Returns:
        A scalar.
    """
    each = torch.stack([F.log_softmax(one.float(), dim=1) for one in logits])  # K x B x C
    mean = each.exp().mean(dim=0).clamp(min=LEAST_SHARE).log()
    return (each.exp() * (each - mean)).sum(dim=2).mean()


class FedCCRLClient(DomainClient[FedCCRLParams]):
    """Cross-entropy of images and changed copies, a contrast of their features, a divergence of their predictions."""

    @classmethod
    def needs_image_styles(cls, params: FedCCRLParams) -> bool:
        """Tell whether copies take styles."""
        return params.transfers

    @classmethod
    def check_run(cls, params: FedCCRLParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse kept features, which have no pixels to change, and images on scales that are drawn.

        Raises:
            ConfigError: With the key.
        """
        if params.copies and model.precompute:
            raise ConfigError(
                "model.precompute=on: the method 'fedccrl' changes the pixels of each batch anew, and kept features "
                "have none; allowed is off"
            )
        if params.copies and images.normalization != "fixed":
            raise ConfigError(
                f"images.normalization={images.normalization}: the method 'fedccrl' changes pixels on one scale for "
                "all batches; allowed is fixed"
            )

    def start_round(self, server_round: int) -> None:
        """Begin the round's draws, and bring the other nodes' styles onto the scale of what the network sees."""
        self._draws = generator(self.setup.seed, "fedccrl", self.setup.index, server_round)
        mean, std = (np.array(values, np.float32) for values in (self.setup.images.mean, self.setup.images.std))
        self._scale = tuple(torch.from_numpy(row).to(self.setup.device).view(1, 3, 1, 1) for row in (mean, std))
        self._others: tuple[Tensor, Tensor] | None = None
        others = None if self.image_styles is None else self.image_styles.of_others(self.setup.index)
        if others is not None and len(others) and self.params.transfers:
            mu, sigma = (others.mean - mean) / std, np.sqrt((others.std / std) ** 2 + mixstyle.EPS)
            self._others = torch.from_numpy(mu).view(-1, 3, 1, 1), torch.from_numpy(sigma).view(-1, 3, 1, 1)

    def loss(self, batch: Batch) -> Terms:
        """Return the terms, weighted."""
        p = self.params
        features, logits = self.forward(batch.x)  # B x D, B x C
        terms = {"ce": self.cross_entropy(logits, batch.y)}
        if p.copies == 0:
            return terms
        seen = [self.forward(self.changed(batch.x)) for _ in range(p.copies)]
        terms["copies"] = torch.stack([self.cross_entropy(other, batch.y) for _, other in seen]).sum()
        if p.lambda_align > 0:
            each = [supervised_contrast(copy, features, batch.y, p.tau, itself=True) for copy, _ in seen]
            terms["align"] = p.lambda_align * torch.stack(each).mean()
        if p.lambda_js > 0:
            terms["js"] = p.lambda_js * divergence([logits, *(other for _, other in seen)])
        return terms

    def changed(self, x: Tensor) -> Tensor:
        """Return a copy of normalised images (B, 3, H, W) with styles of other nodes' images, put through AugMix."""
        if self._others is not None and self._draws.random() < self.params.probability:
            mu, sigma = self._others
            places = torch.from_numpy(drawn_places(len(mu), len(x), self._draws))
            lam = self._draws.beta(self.params.alpha, self.params.alpha, len(x)).astype(np.float32)
            other = mu[places].to(x.device), sigma[places].to(x.device)
            x = mixstyle.restyled(x, mixstyle.style(x), other, torch.from_numpy(lam).to(x.device))
        if not self.params.use_augmix:
            return x
        from fedshift_clients.images.augmix import augmix  # with torchvision, which takes a second to import

        mean, std = self._scale
        pixels = (x * std + mean).mul(255).round().clamp(0, 255).to(torch.uint8)
        seen = augmix(pixels, int(self._draws.integers(2**62)))
        return ((seen.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


def drawn_places(styles: int, images: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return for each image the place of a style, (images,): all different where there are enough of them."""
    return rng.permutation(styles)[:images] if styles >= images else rng.integers(0, styles, images)
