"""Maps in another style: B images, C channels. A style is mu and sigma, mean and deviation of each channel."""

from torch import Tensor

Style = tuple[Tensor, Tensor]  # mu and sigma, (B, C, 1, 1) each


def blended(own: Tensor, other: Tensor, lam: Tensor) -> Tensor:
    """Return lambda times the own value plus 1 - lambda times the other one (MixUp; I2PFL, Eq. 7).

    Args:
        own: (B, ...), such as a half of styles, mu or sigma.
        other: Same shape.
        lam: One weight a sample, (B,).
    """
    weight = lam.view(-1, *[1] * (own.dim() - 1))
    return weight * own + (1 - weight) * other


def with_style(f: Tensor, own: Style, new: Style) -> Tensor:
    """Return sigma' (f - mu) / sigma + mu' of maps (B, C, H, W)."""
    (mu, sigma), (new_mu, new_sigma) = own, new
    return (f - mu) / sigma * new_sigma + new_mu
