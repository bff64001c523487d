"""Loss of FedMD. B batch, C classes."""

from torch import Tensor


def digestion(logits: Tensor, consensus: Tensor) -> Tensor:
    r"""Draw class scores to the federation's: :math:`\frac1{BC}\sum_{i,k}|l_{ik}-\tilde l_{ik}|`.

    Args:
        logits: l, (B, C).
        consensus: The mean scores of the same images, (B, C), without gradient.

    Returns:
        A scalar.
    """
    return (logits.float() - consensus.float()).abs().mean()
