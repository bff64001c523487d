"""Images in a page: PNG in the page itself, as nothing is fetched."""

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 96  # pixels of an image on the page


def scaled(image: NDArray[np.uint8], side: int = SIDE) -> Image.Image:
    """Return an image (H, W, 3) in its size on the page; ``side`` is its longer side."""
    scale = side / max(image.shape[:2])
    size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    return Image.fromarray(image).resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)


def uri(image: Image.Image) -> str:
    """Return an image as a ``data:`` URI."""
    data = io.BytesIO()
    image.save(data, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
