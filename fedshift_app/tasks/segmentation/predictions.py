"""``fedshift predict`` with a model of masks: a mask for each image, and the image with its outline."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedshift_core.errors import ConfigError, DataError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_datasets.io.decode import Decoded
from fedshift_datasets.io.resize import back

Pixels = NDArray[np.uint8]
OUTLINE = (255, 0, 0)
_ON_ITS_SIDE = 5  # the least orientation that exchanges width and height


class Masks:
    """The masks predicted of images, written where a folder is given, each with its image outlined.

    ``folder/NAME.png`` has the classes' places in the list, ``folder/overlay/NAME.png`` the image with outlines, both
    of the image's own size.

    Args:
        model: The saved model.
        paths: The images.
        folder: Where masks are written; None: nowhere.

    Raises:
        ConfigError: If two images would have one mask.
    """

    whole = False

    def __init__(self, model: Any, paths: Sequence[Path], folder: Path | None) -> None:
        names = Counter(f"{path.stem}.png" for path in paths)
        if folder is not None and (twice := sorted(name for name, number in names.items() if number > 1)):
            raise ConfigError(
                f"--masks: {plural(len(twice), 'name')} come twice, the first {shown(twice[0])}; predict by folder"
            )
        self._model, self._folder = model, folder

    def shares(self, scores: torch.Tensor, batch: Sequence[tuple[Any, Decoded]]) -> NDArray[np.float64]:
        """Return the shares (B, C) of each image's pixels by class, and write its mask, if there is a folder.

        Raises:
            ConfigError: If the model gives no masks.
            DataError: If a mask cannot be written.
        """
        classes = len(self._model.classes)
        if scores.ndim != 4 or scores.shape[1] != classes or not torch.isfinite(scores).all():
            raise ConfigError(
                f"the model gives scores of shape {tuple(scores.shape)}, no finite ones of each pixel and class"
            )
        masks = scores.argmax(1).to(torch.uint8).numpy()
        for (picture, made), mask in zip(batch, masks, strict=True):
            if self._folder is not None:
                self._write(self._folder / f"{picture.path.stem}.png", made, mask)
        return np.stack([np.bincount(mask.ravel(), minlength=classes) / mask.size for mask in masks])

    def row(self, picture: Any, shares: Sequence[float]) -> dict[str, Any]:
        """Return what is said of an image, by column: the file of its mask, and the shares of its pixels."""
        mask = None if self._folder is None else str(self._folder / f"{picture.path.stem}.png")
        of_class = {f"pixels({name})": share for name, share in zip(self._model.classes, shares, strict=True)}
        return {"mask": mask} | of_class

    def line(self, row: Mapping[str, Any]) -> str:
        """Return the shares of the classes besides the background, and the file of the mask."""
        shares = [f"{name} {100 * row[f'pixels({name})']:.1f} %" for name in self._model.classes[1:]]
        return "  ".join([", ".join(shares), *filter(None, [row["mask"]])])

    def _write(self, target: Path, made: Decoded, mask: Pixels) -> None:
        """Write a mask of the size of its image's file, and the image as the model sees it with the mask's outline."""
        overlay, (width, height) = target.parent / "overlay" / target.name, made.header.size
        if self._model.exif == "apply" and made.header.orientation >= _ON_ITS_SIDE:
            width, height = height, width
        edge = np.zeros_like(mask, bool)
        edge[1:] |= mask[1:] != mask[:-1]
        edge[:, 1:] |= mask[:, 1:] != mask[:, :-1]
        try:
            overlay.parent.mkdir(parents=True, exist_ok=True)
            back(mask, width, height, self._model.resize).save(target)
            Image.fromarray(np.where(edge[..., None], np.array(OUTLINE, np.uint8), made.pixels)).save(overlay)
        except OSError as error:
            raise DataError(f"--masks: {shown(target)} cannot be written: {error.strerror}") from None
