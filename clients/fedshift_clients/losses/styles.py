"""Maps in another style: B images, C channels. A style is mu and sigma, mean and deviation of each channel."""

from torch import Tensor

Style = tuple[Tensor, Tensor]  # mu and sigma, (B, C, 1, 1) each


def blended(own: Tensor, other: Tensor, lam: Tensor) -> Tensor:
    """Return lambda times one half of styles, mu or sigma, plus 1 - lambda times that of others, (B, C, 1, 1).

    Args:
        own: (B, C, 1, 1).
        other: (B, C, 1, 1).
        lam: (B,).
    """
    of_own = lam.view(-1, 1, 1, 1)
    return of_own * own + (1 - of_own) * other


def with_style(f: Tensor, own: Style, new: Style) -> Tensor:
    """Return sigma' (f - mu) / sigma + mu' of maps (B, C, H, W)."""
    (mu, sigma), (new_mu, new_sigma) = own, new
    return (f - mu) / sigma * new_sigma + new_mu
