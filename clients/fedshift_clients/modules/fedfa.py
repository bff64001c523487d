"""FedFA: the statistics of a feature map drawn around their own, as widely as nodes and federation differ in them.

Paper: "FedFA: Federated Feature Augmentation", Tianfei Zhou, Ender Konukoglu, ICLR 2023;
https://arxiv.org/abs/2301.12995 (section 3.2, algorithms 1 and 2). Reference code: tfzhou/FedFA at 57e9582.

Symbols: f map (B, C, H, W) after a stage, mu and sigma (B, C) its means and deviations over H and W; Sigma^2 (C) the
variance of mu (or sigma) over the batch, that is over a node's images; mu-bar (C) a node's running mean of mu, momentum
alpha; Sigma-bar^2 (C) the variance of mu-bar over the nodes; gamma (C) how much wider a channel is drawn for it.

The running means travel with the weights, as buffers, and are averaged like those of BatchNorm. A variance over nodes
is no average, so a node also sends its squared distance from where the round began, which is the same on all nodes:
Sigma-bar^2 = mean of the squares - (mean of the running means - beginning)^2. Averages are all that it takes, so it
goes with every rule of the server and with sums of which the server sees no part.

Deviations: (1) nodes weigh in Sigma-bar^2 as in the average of the weights, where the paper has 1 / M; (2) a round
begins with the federation's running means, as in the code; algorithm 1 begins each with 0 and 1; (3) the code takes one
variance over nodes *and* channels (torch.var of all), so that its gamma is 1 whatever nodes differ in:
``sharing=false``; (4) the variance over a batch is unbiased, as in the code; the paper has 1 / B; (5) a batch of one
image stays as it is, as its variance is not a number.
"""

import numpy as np
import torch
from torch import Tensor, nn

from fedshift_clients.losses.styles import with_style
from fedshift_clients.modules.at_stages import MapLayer, StageModules
from fedshift_clients.modules.mixstyle import EPS, style
from fedshift_clients.modules.params import FedFAParams


def fusion(over_nodes: Tensor) -> Tensor:
    r"""Return gamma of the channels (C), which sums to C.

    .. math:: \gamma_c=C\,\frac{(1+1/\bar\Sigma_c^2)^{-1}}{\sum_j(1+1/\bar\Sigma_j^2)^{-1}}
    """
    wide = 1 / (1 + 1 / (over_nodes + EPS))
    return over_nodes.shape[0] * wide / wide.sum()


def augmented(f: Tensor, gammas: tuple[Tensor, Tensor], noise: tuple[Tensor, Tensor]) -> Tensor:
    r"""Return a map whose statistics are drawn anew; gradients go through all of it.

    .. math:: \hat\sigma\frac{f-\mu}{\sigma}+\hat\mu,\quad \hat\mu=\mu+e\sqrt{(1+\gamma)\Sigma^2}

    Args:
        f: (B, C, H, W), of two images or more.
        gammas: Of mu and of sigma, (C,) each.
        noise: Standard normal e of mu and of sigma, (B, C) each.
    """
    own = style(f)
    drawn_mu, drawn_sigma = (
        (e * ((gamma + 1) * (values.flatten(1).var(0) + EPS)).sqrt())[..., None, None] + values
        for values, gamma, e in zip(own, gammas, noise, strict=True)
    )
    return with_style(f, own, (drawn_mu, drawn_sigma))


class SharedStatistic(nn.Module):
    """The running mean of one statistic, and what the variance over nodes is made of; (C,) each, all averaged.

    Attributes:
        mean: The node's running mean; of the federation when a round begins.
        origin: The federation's, with which the round began.
        square: (mean - origin)^2.
        gamma: Of the round; not part of the state.
    """

    mean: Tensor
    origin: Tensor
    square: Tensor

    def __init__(self, width: int, begins: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((width,), begins))
        self.register_buffer("origin", torch.full((width,), begins))
        self.register_buffer("square", torch.ones(width))  # as the code: a variance of 1 before the first round
        self.gamma = torch.ones(width)

    @torch.no_grad()
    def start_round(self) -> None:
        """Take gamma from what nodes differed in, and begin anew where they are on average."""
        self.gamma = fusion((self.square - (self.mean - self.origin).square()).clamp(min=0))
        self.origin.copy_(self.mean)
        self.square.zero_()

    @torch.no_grad()
    def add(self, values: Tensor, momentum: float) -> None:
        """Take in a batch of the statistic, (B, C)."""
        self.mean.copy_(self.mean * momentum + values.mean(0) * (1 - momentum))
        self.square.copy_((self.mean - self.origin).square())


class FeatureAugmentation(MapLayer):
    """Augments a map; holds the statistics that are shared of it."""

    def __init__(self, width: int, params: FedFAParams) -> None:
        super().__init__(width, params)
        self.mu = SharedStatistic(width, 0.0) if params.sharing else None
        self.sigma = SharedStatistic(width, 1.0) if params.sharing else None

    def start_round(self, rng: np.random.Generator) -> None:
        """Take this round's draws and gamma."""
        super().start_round(rng)
        for statistic in (self.mu, self.sigma):
            if statistic is not None:
                statistic.start_round()

    def changed(self, f: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the augmented map, and take in its statistics."""
        noise = rng.standard_normal((2, len(f), self._width), np.float32)
        if len(f) < 2:
            return f
        gammas = [torch.ones(self._width, device=f.device)] * 2
        if self.mu is not None and self.sigma is not None:
            for statistic, values in zip((self.mu, self.sigma), style(f.detach()), strict=True):
                statistic.add(values.flatten(1), self._params.momentum)
            gammas = [self.mu.gamma, self.sigma.gamma]
        of_mu, of_sigma = torch.from_numpy(noise).to(f.device)
        return augmented(f, (gammas[0], gammas[1]), (of_mu, of_sigma))


class FedFAModules(StageModules[FedFAParams]):
    """Augments the statistics of the maps of some stages."""

    name, part, layer = "fedfa", "augmentation", FeatureAugmentation
