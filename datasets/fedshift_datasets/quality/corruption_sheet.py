"""Draws a contact sheet of corrupted images: a row for each corruption, a column for each image and severity."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from fedshift_datasets.base import ImageSet
from fedshift_datasets.corruptions import CORRUPTIONS, corrupt
from fedshift_datasets.quality.preview import contact_sheet

SEVERITIES = (1, 3, 5)
ORIGINAL = "original"


def corruption_sheet(
    images: ImageSet,
    names: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    *,
    count: int = 4,
    seed: int = 0,
    scale: int = 2,
) -> Image.Image:
    """Draw images as they are and corrupted, evenly spaced in their order, as that may go class by class.

    Args:
        images: The images to corrupt; an image's index is its key.
        names: Corruptions, one row each, from :data:`fedshift_datasets.corruptions.CORRUPTIONS`.
        severities: One column each, for every image.
        count: Images shown, or all if there are fewer.
        seed: Seed of the corruptions.
        scale: How many times images of up to 64 pixels are enlarged; see :func:`contact_sheet`.

    Returns:
        An RGB picture; the same arguments give the same pixels.

    Raises:
        ConfigError: If there is no such corruption, severity or seed.
        DataError: If the images are of a size that cannot be corrupted.
        ValueError: If there is nothing to show, or ``scale`` is below 1.
    """
    shown = min(max(count, 0), len(images))
    keys = np.arange(shown) * len(images) // max(shown, 1)
    x = images.x[keys]
    columns = (ORIGINAL, *map(str, severities)) * len(x)
    rows = {}
    for name in names:
        levels = [corrupt(x, name, severity, keys, seed) for severity in (0, *severities)]
        # Images x levels, in the order of the columns.
        cells = np.stack(levels, axis=1).reshape(-1, *x.shape[1:])
        rows[name] = ImageSet(cells, np.arange(len(cells)))
    return contact_sheet(rows, columns, per_class=1, scale=scale)
