"""Loss terms and mask of F2DC (Wang et al., CVPR 2026, https://arxiv.org/abs/2603.14238), equations 3 and 5.

B batch, C classes, d width of the latent features, H x W the map. All of them compute in float32.
"""

import torch
from torch import Tensor

from fedshift_clients.losses.common import unit
from fedshift_clients.losses.imbalance import PLAIN, Classification
from fedshift_clients.modules.params import Noise

#: Half the smallest step of a float32 uniform number: keeps u = 0 from giving -inf.
U_MIN = 2.0**-25


def pair_noise(like: Tensor, kind: Noise, rng: torch.Generator) -> Tensor:
    r"""Draw :math:`g_a-g_b` of Eq. 3, one number for each unit of the map.

    ``logistic_pair``: the paper's :math:`g=\log u-\log(1-u)`, two Logistics; their difference has variance 6.58.
    ``gumbel_pair``: the released code's :math:`g=-\log(-\log u)`, two standard Gumbels. Their difference is one
    Logistic, variance 3.29, and is drawn as such.

    Args:
        like: Gives shape, device and memory format.
        kind: Which noise.
        rng: Generator on the device of ``like``.

    Returns:
        float32, of the shape of ``like``.
    """

    def logistic() -> Tensor:
        u = torch.empty_like(like, dtype=torch.float32, requires_grad=False)
        return u.uniform_(generator=rng).logit_(eps=U_MIN)

    return logistic() - logistic() if kind == "logistic_pair" else logistic()


def soft_mask(s: Tensor, noise: Tensor | None, sigma: float) -> Tensor:
    r"""Return the mask :math:`\mathcal M=\epsilon((\mathcal S+g_a-g_b)/\sigma)` (Eq. 3 in its stable form).

    The two are equal because :math:`\log\epsilon(s)-\log(1-\epsilon(s))=s` for the sigmoid :math:`\epsilon`.

    Args:
        s: Attribution map S, any shape.
        noise: g_a - g_b of the same shape; None for the mask without noise.
        sigma: Smoothness, above 0; near 0 the mask is binary.

    Returns:
        Numbers from 0 to 1 in float32, of the shape of ``s``.
    """
    s = s.float()
    return torch.sigmoid((s if noise is None else s + noise) / sigma)


def most_confident_wrong(logits: Tensor, y: Tensor) -> Tensor:
    """Return y^, the most confident wrong class of each sample: the second best if the best is correct (A6).

    Args:
        logits: (B, C), C at least 2.
        y: Labels (B,).

    Returns:
        Classes (B,), different from ``y``; the first of equal ones.
    """
    right = y[:, None] == torch.arange(logits.shape[1], device=y.device)  # one_hot would wait for the device
    return logits.detach().float().masked_fill(right, -torch.inf).argmax(dim=1)


def separability(plus: Tensor, minus: Tensor, tau: float) -> Tensor:
    r"""Return the batch mean of :math:`\log e^{s(l^+,l^-)/\tau}=s(l^+,l^-)/\tau`, first part of Eq. 5.

    Args:
        plus: l+, (B, d).
        minus: l-, (B, d). A sample with l+ or l- zero has cosine 0.
        tau: Temperature, above 0.
    """
    return (unit(plus) * unit(minus)).sum(dim=1).mean() / tau


def decoupling(
    plus: Tensor,
    minus: Tensor,
    logits_plus: Tensor,
    logits_minus: Tensor,
    y: Tensor,
    wrong: Tensor,
    tau: float,
    cross_entropy: Classification = PLAIN,
) -> Tensor:
    r"""Return :math:`\mathcal L_{DFD}` (Eq. 5): l+ and l- apart, l+ tells the class, l- a wrong one.

    .. math:: \frac1B\sum_i\frac{s(l_i^+,l_i^-)}\tau
        -y_i\log\delta(\mathbf m(l_i^+))-\hat y_i\log\delta(\mathbf m(l_i^-))

    Args:
        plus: l+, (B, d).
        minus: l-, (B, d).
        logits_plus: m(l+), (B, C).
        logits_minus: m(l-), (B, C).
        y: Labels (B,).
        wrong: y^, (B,).
        tau: Temperature, above 0.
        cross_entropy: As the run weighs classes.
    """
    tells = cross_entropy(logits_plus, y) + cross_entropy(logits_minus, wrong, y)
    return separability(plus, minus, tau) + tells
