"""Adaptation: something done on the node between the arrival of the weights and the score, over any training method.

The section ``adapt`` of a configuration names one. It sees images of the test set, never their labels: it is given
the images alone, and the base client scores what it yields. While its code runs the client has neither test sets nor
others of its own: ``test_set`` raises, ``own_sets`` is empty.
"""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.settings import ImageConfig, ModelConfig
from fedshift_clients.training.trainer import LocalTrainer
from fedshift_core.params import P, Parametrised

Places = NDArray[np.int64]


class Adaptation(Parametrised[P]):
    """Changes a client's model before its test images are scored; weights are put back afterwards.

    Attributes:
        params: Its parameters.
        before: What the score without the adaptation is called, among ``Scores.others``; the one name that it adds.
    """

    before: ClassVar[str] = "before-adaptation"
    #: Whether the score of an image depends on no other image, so that nodes may share out a test set.
    scores_images_alone: ClassVar[bool] = False
    #: Whether it is done, too, to a model that local training has just left.
    after_training: ClassVar[bool] = True

    #: Whether it trains the encoder, which then must not be frozen as a whole.
    tunes_encoder: ClassVar[bool] = False

    #: Whether it leaves what is frozen as it is, and augments no image in a way of its own, so that the frozen
    #: beginning of a model may be computed once (``model.precompute``).
    keeps_frozen: ClassVar[bool] = False
    #: Whether it looks at the node's training images, or trains on them.
    uses_training_images: ClassVar[bool] = False

    def __init__(self, params: P) -> None:
        self.params = params

    @property
    def goes_by_order(self) -> bool:
        """Whether a score depends on the order of the test set: test images that come class by class then mislead."""
        return False

    def check(self, images: ImageConfig) -> None:
        """Raise ``ConfigError`` if it cannot run so; called before anything starts."""

    def check_model(self, model: SplitModel, config: ModelConfig) -> None:
        """Raise ``ConfigError`` if it cannot adapt this model; called before anything starts.

        Args:
            model: As a node has it, with modules and frozen parts.
            config: What is said of it; its ``name`` is the node's own network.
        """

    def received(self, client: LocalTrainer) -> None:
        """Note that the client has other weights: what was worked out from those before is void."""

    def adapt(self, client: LocalTrainer, images: NDArray[np.uint8]) -> Iterator[Places]:
        """Change the client's model by what test images (N, H, W, 3) look like.

        Args:
            client: Its model, its tools (``augmented_batches``, ``forward``, ``torch_rng``, ...), its training images.
                It holds no labels of what is scored.
            images: The test images; there are no labels.

        Yields:
            The places of images that are to be scored now, with the model as it is; each image once in all.
        """
        raise NotImplementedError

    def predict(self, client: LocalTrainer, x: Tensor) -> Tensor:
        """Return the logits (B, C) by which images (B, 3, H, W) are classified; by default the client's own.

        It is used in the order of the images that :meth:`adapt` yielded.
        """
        return client.predict(x)
