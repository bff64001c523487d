"""MixStyle: the style of an image, mean and deviation of the channels of a map, mixed with that of another one.

Paper: "Domain Generalization with MixStyle", Kaiyang Zhou, Yongxin Yang, Yu Qiao, Tao Xiang, ICLR 2021;
https://arxiv.org/abs/2104.02008 (equations 3-8). Reference code: KaiyangZhou/mixstyle-release at 16f7cf1.

Symbols: f map (B, C, H, W), mu and sigma (B, C) its means and deviations over H and W, j partner of an image in the
batch, lambda ~ Beta(alpha, alpha) one number an image.

Deviations: (1) with ``mix=crossdomain`` partners are drawn by the domains of the images, where the code swaps the
halves of a batch that its sampler filled with two domains; a batch of one domain stays as it is; (2) a map of one pixel
has the deviation sqrt(eps), where the code's unbiased variance is not a number.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.losses.styles import blended, with_style
from fedshift_clients.modules.at_stages import MapLayer, StageModules
from fedshift_clients.modules.params import MixStyleParams

EPS = 1e-6  # the code's


def style(f: Tensor) -> tuple[Tensor, Tensor]:
    """Return mu and sigma of a map (B, C, H, W), (B, C, 1, 1) each."""
    correction = int(f.shape[2] * f.shape[3] > 1)
    return f.mean((2, 3), keepdim=True), (f.var((2, 3), correction=correction, keepdim=True) + EPS).sqrt()


def mixed(f: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
    r"""Return a map with mixed style (Eqs 6 to 8); no gradient goes through mu and sigma.

    .. math:: \sigma_{mix}\frac{f-\mu}{\sigma}+\mu_{mix},\quad \mu_{mix}=\lambda\mu+(1-\lambda)\mu_j

    and likewise sigma.

    Args:
        f: (B, C, H, W).
        partner: j, (B,), places in the batch.
        lam: (B,).
    """
    with torch.no_grad():
        own = style(f)
    return restyled(f, own, (own[0][partner], own[1][partner]), lam)


def restyled(f: Tensor, own: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], lam: Tensor) -> Tensor:
    """Return a map (B, C, H, W) with its own style mixed with another one, by lambda (B,); as :func:`mixed`.

    Args:
        f: The map.
        own: Its mu and sigma, (B, C, 1, 1) each.
        other: Those that it is mixed with.
        lam: The part of its own.
    """
    with torch.no_grad():
        new = blended(own[0], other[0], lam), blended(own[1], other[1], lam)
    return with_style(f, own, new)


def other_domain(domains: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64] | None:
    """Return for each image one of another domain, drawn with equal probabilities; None where there is one domain.

    Args:
        domains: (B,).
        rng: Of the draws.
    """
    if (domains == domains[0]).all():
        return None
    drawn, partner = rng.random(len(domains)), np.empty(len(domains), np.int64)
    for domain in np.unique(domains):
        own, others = np.flatnonzero(domains == domain), np.flatnonzero(domains != domain)
        partner[own] = others[(drawn[own] * len(others)).astype(np.int64)]
    return partner


class MixStyle(MapLayer):
    """Mixes the styles of the images of a map."""

    def changed(self, f: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the map with mixed styles."""
        lam = rng.beta(self._params.alpha, self._params.alpha, len(f)).astype(np.float32)
        partner = rng.permutation(len(f)) if self._params.mix == "random" else self._across(len(f), rng)
        if partner is None:
            return f
        return mixed(f, torch.from_numpy(partner).to(f.device), torch.from_numpy(lam).to(f.device))

    def _across(self, images: int, rng: np.random.Generator) -> NDArray[np.int64] | None:
        """Return partners of other domains; views of a batch in one pass have its domains one after another."""
        if self.domains is None or images % len(self.domains):
            return None
        of_each = self.domains.cpu().numpy()
        return other_domain(np.tile(of_each, images // len(of_each)), rng)


class MixStyleModules(StageModules[MixStyleParams]):
    """Mixes styles after some stages."""

    name, part, layer = "mixstyle", "mixing", MixStyle
