"""The loss terms of FedCode (Zhang et al., Neurocomputing 2026). B batch, D feature width.

Symbols: z_c semantic feature, z_s style feature, G global semantic prototypes, P global style prototypes,
P- and G- with a bar their means, tau temperature. Prototypes are constants; features carry gradients.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedshift_clients.losses.common import unit


def semantic_contrast(
    z_c: Tensor,
    y: Tensor,
    prototypes: Tensor,
    labels: Tensor,
    tau: float,
    *,
    style: Tensor | None = None,
    centre: Tensor | None = None,
) -> Tensor:
    r"""Draw semantic features to the global prototype of their class, away from style (SemCL, Eq. 11).

    .. math:: -\frac1B\sum_i\log\frac{e^{s(z_i^c,G^{y_i})}}
        {\sum_ke^{s(z_i^c,G^k)}+e^{s(z_i^c,z_i^s)}+e^{s(z_i^c,\bar P)}},\quad
        s(a,b)=\frac{a\cdot b}{\|a\|\|b\|\tau}

    Samples whose class has no global prototype are left out (methods A5).

    Args:
        z_c: Semantic features (B, D).
        y: Classes (B,).
        prototypes: G, (K', D), one per class that has one.
        labels: The class of each, (K',).
        tau: Temperature of Eq. 10, above 0.
        style: z_s, (B, D), the negative of its own sample; None leaves it out.
        centre: P-bar, (D,), a negative of all samples; None leaves it out.

    Returns:
        A scalar; 0 if no sample of the batch has a prototype.
    """
    return _contrast(z_c, y[:, None] == labels, prototypes, (style, centre), tau)  # B x K'


def style_contrast(
    z_s: Tensor,
    domain: int,
    prototypes: Tensor,
    tau: float,
    *,
    semantic: Tensor | None = None,
    centre: Tensor | None = None,
) -> Tensor:
    r"""Draw style features to the style prototype of the node's pseudo-domain, away from meaning (StyCL, Eq. 13).

    .. math:: -\frac1B\sum_i\log\frac{e^{s(z_i^s,P^j)}}
        {\sum_{j'}e^{s(z_i^s,P^{j'})}+e^{s(z_i^s,z_i^c)}+e^{s(z_i^s,\bar G)}}

    Args:
        z_s: Style features (B, D).
        domain: j, the row of the node's own cluster in ``prototypes``.
        prototypes: P, (J, D). With J = 1 only ``semantic`` and ``centre`` are negatives (methods A7).
        tau: Temperature of Eq. 10, above 0.
        semantic: z_c, (B, D), the negative of its own sample; None leaves it out.
        centre: G-bar, (D,), a negative of all samples; None leaves it out.

    Returns:
        A scalar.
    """
    own = torch.arange(len(prototypes), device=z_s.device) == domain  # J
    return _contrast(z_s, own[None, :].expand(len(z_s), -1), prototypes, (semantic, centre), tau)


def decoupling(z_s: Tensor, z_c: Tensor, form: Literal["abs_cos", "sum_abs", "literal"]) -> Tensor:
    r"""Push style and semantic features to be orthogonal (FDR, Eq. 14, methods A3), batch mean.

    * ``abs_cos``: :math:`\frac{|z^s\cdot z^c|}{\|z^s\|\|z^c\|}`, as the paper's words say;
    * ``sum_abs``: :math:`\frac{\sum_j|z_j^sz_j^c|}{\|z^s\|\|z^c\|}`;
    * ``literal``: :math:`\sum_j\frac{|z_j^sz_j^c|}{|z_j^s||z_j^c|}` as printed: the number of units that
      are not zero in both. It has no gradient and is there to show that.

    Args:
        z_s: Style features (B, D).
        z_c: Semantic features (B, D).
        form: Which reading of the equation.
    """
    if form == "literal":
        return (z_s.float().sign() * z_c.float().sign()).abs().sum(dim=1).mean()  # 0 / 0 counts as 0
    product = unit(z_s) * unit(z_c)  # B x D
    per_sample = product.sum(dim=1).abs() if form == "abs_cos" else product.abs().sum(dim=1)
    return per_sample.mean()


def _contrast(
    anchor: Tensor, positive: Tensor, prototypes: Tensor, negatives: Sequence[Tensor | None], tau: float
) -> Tensor:
    """Return the common form of Eqs 11 and 13, averaged over the samples that have a positive.

    Args:
        anchor: (B, D).
        positive: Which prototype draws which sample, (B, P), at most one a row; the others repel it.
        prototypes: (P, D).
        negatives: Further ones, (B, D) or (D,), or None.
        tau: Temperature.
    """
    a, g = unit(anchor), unit(prototypes)
    with torch.autocast(a.device.type, enabled=False):  # which would multiply in bfloat16
        to_prototypes = a @ g.T / tau  # B x P
    others = [
        (a * unit(negative.reshape(-1, a.shape[1]))).sum(dim=1) / tau for negative in negatives if negative is not None
    ]
    similarity = torch.cat([to_prototypes, *(column[:, None] for column in others)], dim=1)
    has = positive.any(dim=1)
    per_sample = similarity.logsumexp(dim=1) - (to_prototypes * positive).sum(dim=1)
    return per_sample.masked_fill(~has, 0.0).sum() / has.sum().clamp(min=1)
