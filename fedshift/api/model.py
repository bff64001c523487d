"""A trained model as a torch module, with what makes an image its input and the names of its outputs."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from fedshift.export import images, opening, predicting, saved, saving, scorer
from fedshift.export.saved import SavedModel
from fedshift.export.scorer import Scorer
from fedshift.run import reading
from fedshift_core import atomic_io
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shown
from fedshift_datasets.io import pictures
from fedshift_datasets.io.resize import fit

#: An image: a file, a Pillow image, or an array (H, W, 3) or (H, W), uint8.
Picture = str | os.PathLike[str] | Image.Image | NDArray[np.uint8]


class Model(nn.Module):
    """A trained model that classifies images as its run scored them.

    ``model(model.preprocess(image))`` gives scores; ``softmax`` makes probabilities of them.

    Attributes:
        about: What it is, where it is from and what it scored, as ``model.json`` of a saved model.
        scorer: The module; ``scorer.model`` is the network, without the subtraction of the mean.
    """

    def __init__(self, about: SavedModel, scorer: Scorer) -> None:
        super().__init__()
        self.about, self.scorer = about, scorer

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the scores."""
        return self.about.classes

    @property
    def size(self) -> int:
        """Height and width of its images in pixels."""
        return self.about.size

    def forward(self, images: Tensor) -> Tensor:
        """Return scores (B, C) of images (B, 3, size, size), float32, 0 to 1, as :meth:`preprocess` gives them.

        Raises:
            ConfigError: If they have another shape, of which a network may give scores that mean nothing.
        """
        expected = (3, self.size, self.size)
        if not isinstance(images, Tensor) or images.ndim != 4 or tuple(images.shape[1:]) != expected:
            found = tuple(images.shape) if isinstance(images, Tensor) else as_found(images)
            raise ConfigError(f"images: expected a tensor (B, {', '.join(map(str, expected))}), found {found}")
        scores: Tensor = self.scorer(images)
        return scores

    def preprocess(self, image: Picture | Sequence[Picture]) -> Tensor:
        """Return images as the run reads them: of the model's size, float32, 0 to 1.

        Args:
            image: One image, or several.

        Returns:
            A tensor (B, 3, size, size); of one image B is 1.

        Raises:
            FedShiftError: If there is none, or one cannot be read.
        """
        given = image if isinstance(image, list | tuple) else [image]
        if not given:
            raise ConfigError("preprocess: no image is given")
        return predicting.as_tensor(np.stack([self._square(each) for each in given]))

    def scores(self, images: Tensor) -> Tensor:
        """Return scores (B, C) on the CPU, without gradients and in evaluation.

        Arguments and errors are those of :meth:`forward`, and the images may be on any device.
        """
        device, training = self.scorer.get_buffer("mean").device, self.training
        self.eval()
        try:
            with torch.inference_mode():
                scores: Tensor = self(images.to(device) if isinstance(images, Tensor) else images).cpu()
        finally:
            self.train(training)
        return scores

    def predict(self, image: Picture | Sequence[Picture]) -> list[str]:
        """Return the likeliest class of each image; arguments and errors as of :meth:`preprocess`."""
        return [self.classes[k] for k in self.scores(self.preprocess(image)).argmax(dim=1).tolist()]

    def _square(self, image: object) -> NDArray[np.uint8]:
        """Return an image as (size, size, 3), uint8."""
        if isinstance(image, str | os.PathLike):
            return images.read(Path(image), self.size, self.about.images()).pixels
        found = type(image).__name__
        if isinstance(image, np.ndarray):
            found = f"{image.shape} of {image.dtype}"
            if image.dtype == np.uint8 and image.size and image.ndim in (2, 3) and image.shape[2:] in ((), (3,)):
                image = Image.fromarray(image)
        if not isinstance(image, Image.Image) or image.mode.startswith(("I", "F")):
            found = f"an image of mode {image.mode}; give its file" if isinstance(image, Image.Image) else found
            raise ConfigError(
                "preprocess: expected a file, a Pillow image of 8 bits a channel, or an array (H, W, 3) or (H, W) of "
                f"uint8, found {found}"
            )
        rgb = image.convert("RGB")
        if self.about.images().exif == "apply":
            rgb = pictures.turned(rgb, pictures.orientation(image))
        return np.asarray(fit(rgb, self.size, self.about.resize))


def of_run(folder: Path, *, node: int | None, server_round: int | None, before: bool) -> Model:
    """Return the model of a run, see ``Run.model``."""
    # Of another form than weights: this process has the code of the run, weights alone would lack it.
    record, wanted = reading.read(folder, "model"), saving.Wanted(folder, "exported", node, False, before, server_round)
    config, arrays, fields = saving.taken(record, wanted)
    described = fields | saving.described(config, arrays, "safetensors")
    about = saved.described(described, atomic_io.pack(arrays), shown(folder))
    return Model(about, scorer.rebuilt(config, arrays, "the run's"))


def opened(folder: Path) -> Model:
    """Return a saved model.

    Raises:
        FedShiftError: If the folder holds none, or one that is a program or not complete.
    """
    about, file = saved.read(folder)
    if about.form != "safetensors" or about.parts == "shared":
        why = "is a program: fedshift.predict uses it" if not about.configuration else "lacks the nodes' personal parts"
        raise ConfigError(f"{shown(folder)}: expected a complete model as safetensors, found {about.form}, which {why}")
    return Model(about, opening.scorer_of(about, file))
