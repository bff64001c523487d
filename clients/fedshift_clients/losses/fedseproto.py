r"""Loss terms of FedSeProto (Lai et al., ECAI 2024). B batch, C classes, D feature width.

Symbols: z general, z^s semantic, z^d domain features, c_g global prototypes. All compute in float32.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedshift_core.methods.fedseproto import Reduction

MAX_KL = 50.0  # divergences above it count as it (A2)
VARIANCE_EPS = 1e-6  # keeps the logarithm of a dimension that does not vary in a batch


def gaussian_kl(mean: Tensor, log_variance: Tensor, reduction: Reduction = "mean") -> Tensor:
    r"""Pull the distribution of each code to the standard normal one (Eq. 10, A7 i).

    .. math:: \frac1B\sum_i\frac1D\sum_j\tfrac12(\mu_{ij}^2+\sigma_{ij}^2-\log\sigma_{ij}^2-1)

    Args:
        mean: mu, (B, D).
        log_variance: log sigma^2, (B, D).
        reduction: ``sum`` is D times as much, the divergence itself.

    Returns:
        A scalar, not negative.
    """
    mu, log_var = mean.float(), log_variance.float()
    return 0.5 * (mu.square() + log_var.exp() - log_var - 1).mean() * _times(mu, reduction)


def moment_kl(codes: Tensor, reduction: Reduction = "mean") -> Tensor:
    r"""Pull the Gaussian fitted to each dimension of the batch to the standard normal one (A7 ii).

    .. math:: \frac1D\sum_j\tfrac12(m_j^2+v_j-\log v_j-1)

    Args:
        codes: z^s or z^d, (B, D); m and v are their mean and variance (divided by B) over the batch.
        reduction: ``sum`` is D times as much.

    Returns:
        A scalar. One sample has no variance: only the mean's part, as if v were 1.
    """
    z = codes.float()
    m = z.mean(dim=0)  # D
    if len(z) == 1:
        return 0.5 * m.square().mean() * _times(z, reduction)
    v = (z - m).square().mean(dim=0)  # D
    return 0.5 * (m.square() + v - (v + VARIANCE_EPS).log() - 1).mean() * _times(z, reduction)


def squared_norm(codes: Tensor, reduction: Reduction = "mean") -> Tensor:
    r"""Return :math:`\frac1B\sum_i\frac1{2D}\|z_i\|^2`: what a fixed variance leaves of the KL (A7 iii).

    Args:
        codes: z^s or z^d, (B, D).
        reduction: ``sum`` is D times as much.
    """
    return 0.5 * codes.float().square().mean() * _times(codes, reduction)


def _times(codes: Tensor, reduction: Reduction) -> int:
    """Return what makes of a mean over the dimensions of codes (B, D) what is asked for."""
    return codes.shape[1] if reduction == "sum" else 1


def reconstruction(images: Tensor, decoded: Tensor) -> Tensor:
    """Return the mean squared error (Eq. 10): per value, as its name says, inside the mean over the batch (A6).

    Args:
        images: x on the scale 0 to 1, (B, 3, H, W).
        decoded: G([z^s, z^d]), same shape.
    """
    return F.mse_loss(decoded.float(), images.float())


def distillation(
    teacher: Tensor,
    semantic: Tensor,
    domain: Tensor,
    *,
    temperature: float,
    form: Literal["corrected", "printed"],
    direction: Literal["teacher_student", "student_teacher"],
) -> Tensor:
    r"""Make the semantic output follow the teacher's and the domain output not (Eq. 11).

    .. math:: \frac1B\sum_i\log(1+e^{s_1-s_2}),\quad
        s_1=D_{KL}(\mathcal H(z),\mathcal H(z^s)),\ s_2=D_{KL}(\mathcal H(z),\mathcal H(z^d))

    ``printed`` is the paper's formula, whose sign works against its text (A1): log(1 + e^(s2 - s1)).

    Args:
        teacher: Logits H(z), (B, C); no gradient goes into them (A3).
        semantic: Logits H(z^s), (B, C).
        domain: Logits H(z^d), (B, C).
        temperature: Divides all logits, above 0; the loss is not scaled by its square.
        form: Which sign.
        direction: ``teacher_student`` is KL(teacher || student).

    Returns:
        A scalar, above 0; log 2 where both outputs are equally far from the teacher's.
    """
    log_t, log_s, log_d = (
        F.log_softmax(logits.float() / temperature, dim=1) for logits in (teacher.detach(), semantic, domain)
    )  # B x C
    reverse = direction == "student_teacher"
    s1 = _divergence(log_s, log_t) if reverse else _divergence(log_t, log_s)  # B
    s2 = _divergence(log_d, log_t) if reverse else _divergence(log_t, log_d)  # B
    return F.softplus(s1 - s2 if form == "corrected" else s2 - s1).mean()


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q), (B,), of log-probabilities (B, C); at most ``MAX_KL``."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).clamp(max=MAX_KL)


def prototype_distance(
    codes: Tensor,
    y: Tensor,
    prototypes: Tensor,
    present: Tensor,
    *,
    reduction: Literal["sample_mean", "class_mean"],
    dimensions: Reduction = "mean",
) -> Tensor:
    r"""Pull semantic features to the global prototype of their class (Eq. 13).

    ``sample_mean``: :math:`\frac1B\sum_i\|z^s_i-c_g^{y_i}\|^2/D`; ``class_mean`` averages within each
    class first, then over the classes, as Eq. 13 does. Samples whose class has no prototype are left out (A12).

    Args:
        codes: z^s, (B, D).
        y: Labels (B,).
        prototypes: c_g, (C, D).
        present: Classes that have one, (C,), bool.
        reduction: How the samples are averaged.
        dimensions: ``sum`` leaves out the division by D.

    Returns:
        A scalar; 0 if no sample of the batch has a prototype.
    """
    squared = (codes.float() - prototypes.float()[y]).square().mean(dim=1) * _times(codes, dimensions)  # B
    weight = present[y].float()  # B
    if reduction == "class_mean":
        weight = weight / torch.bincount(y, minlength=len(prototypes))[y]
        # Now the weights of a class sum to 1, all weights to the number of classes.
    return (squared * weight).sum() / weight.sum().clamp(min=0.5)  # the sum is 0 or at least 1
