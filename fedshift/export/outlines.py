"""``fedshift predict`` with a model of masks: a mask for each image, and the image with its outline."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedshift.export import images
from fedshift.export.images import Picture
from fedshift.export.predicting import Predicted, Run, tensor_of
from fedshift.export.saved import SavedModel
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_datasets.base import Exif
from fedshift_datasets.io.decode import Decoded
from fedshift_datasets.io.pictures import Header
from fedshift_datasets.io.resize import back

Pixels = NDArray[np.uint8]
OUTLINE = (255, 0, 0)
_ON_ITS_SIDE = 5  # the least orientation that exchanges width and height


@dataclass
class Outlined(Predicted):
    """The masks of a model; ``probabilities`` are the shares of each image's pixels by class, (N, C).

    Attributes:
        masks: The file of each image's mask; empty where none is written.
    """

    masks: list[Path] = field(default_factory=list)

    def _rows(self) -> Iterator[dict[str, Any]]:
        for place, (picture, shares) in enumerate(zip(self.pictures, self.probabilities.tolist(), strict=True)):
            mask = str(self.masks[place]) if self.masks else None
            of_class = {f"pixels({name})": share for name, share in zip(self.model.classes, shares, strict=True)}
            yield {"file": str(picture.path), "mask": mask} | of_class

    def line(self, row: dict[str, Any]) -> str:
        """Return the shares of the classes besides the background, and the file of the mask."""
        shares = [f"{name} {100 * row[f'pixels({name})']:.1f} %" for name in self.model.classes[1:]]
        return "  ".join([", ".join(shares), *filter(None, [row["mask"]])])

    def metrics(self) -> None:
        """Return nothing: `fedshift evaluate` scores masks."""


def outlined(model: SavedModel, taken: Sequence[Picture], run: Run, number: int, folder: Path | None) -> Outlined:
    """Predict the masks of images, and write them where a folder is given, each with its image outlined.

    ``folder/NAME.png`` has the classes' places in the list, ``folder/overlay/NAME.png`` the image with outlines, both
    of the image's own size.

    Raises:
        ConfigError: If two images would have one mask, or the model gives no masks.
        DataError: If no image can be read, or a mask cannot be written.
    """
    prediction, parts = Outlined(model), list[NDArray[np.float64]]()
    names = Counter(f"{picture.path.stem}.png" for picture in taken)
    if folder is not None and (twice := sorted(name for name, number in names.items() if number > 1)):
        raise ConfigError(
            f"--masks: {plural(len(twice), 'name')} come twice, the first {shown(twice[0])}; predict by folder"
        )
    for group in images.batches(taken, model.size, model.images(), number, 1, prediction.broken):
        said = _classes(run(tensor_of(group)), model)
        parts.append(np.stack([np.bincount(mask.ravel(), minlength=len(model.classes)) / mask.size for mask in said]))
        for (picture, made), mask in zip(group, said, strict=True):
            prediction.pictures.append(picture)
            if folder is not None:
                prediction.masks.append(_written(folder / f"{picture.path.stem}.png", made, mask, model))
    if not parts:
        raise DataError(f"none of {plural(len(taken), 'image')} can be read; the first: {prediction.broken[0]}")
    prediction.probabilities = np.concatenate(parts)
    return prediction


def _classes(scores: torch.Tensor, model: SavedModel) -> Pixels:
    if scores.ndim != 4 or scores.shape[1] != len(model.classes) or not torch.isfinite(scores).all():
        raise ConfigError(
            f"the model gives scores of shape {tuple(scores.shape)}, no finite ones of each pixel and class"
        )
    return scores.argmax(1).to(torch.uint8).numpy()


def _size(header: Header, exif: Exif) -> tuple[int, int]:
    """Return width and height of an image as it is looked at."""
    width, height = header.size
    return (height, width) if exif == "apply" and header.orientation >= _ON_ITS_SIDE else (width, height)


def _written(target: Path, made: Decoded, mask: Pixels, model: SavedModel) -> Path:
    """Write a mask of the size of its image's file, and the image as the model sees it with the mask's outline."""
    overlay = target.parent / "overlay" / target.name
    edge = np.zeros_like(mask, bool)
    edge[1:] |= mask[1:] != mask[:-1]
    edge[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    try:
        overlay.parent.mkdir(parents=True, exist_ok=True)
        back(mask, *_size(made.header, model.exif), model.resize).save(target)
        Image.fromarray(np.where(edge[..., None], np.array(OUTLINE, np.uint8), made.pixels)).save(overlay)
    except OSError as error:
        raise DataError(f"--masks: {shown(target)} cannot be written: {error.strerror}") from None
    return target
