"""Scores images against what is known of them: one class each, unless a task says otherwise."""

from torch import Tensor

from fedshift_clients import losses


class Grading:
    """Scores of images of one class each; a task of another kind gives the client its own (``client.grading``)."""

    def right(self, predicted: Tensor, y: Tensor) -> Tensor:
        """Return how many images of a batch are right, as one number.

        Args:
            predicted: The predicted classes (B,), of a task with maps (B, H, W).
            y: The true ones, of that shape.
        """
        return (predicted == y).sum()

    def loss_sum(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the loss by which scores are compared, summed over a batch; logits (B, C) or (B, C, H, W)."""
        return losses.cross_entropy(logits, y) * len(y)

    def loss_of_each(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return that loss of each image, (B,)."""
        return losses.cross_entropy_of_each(logits, y)
