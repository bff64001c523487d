"""Images of 224 pixels and more go the way of small ones: decoded, kept, mapped, augmented, normalised."""

from pathlib import Path

import numpy as np
import pytest
import torch
from digit_files import noise
from PIL import Image

from clients.images.augment import Pipeline, draw_moves
from clients.training.settings import ImageConfig
from datasets.base import Form
from datasets.io import cache, trees


@pytest.mark.parametrize("size", [224, 384])
def test_large_images_are_mapped_and_augmented_as_small_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    for number, shape in enumerate([(300, 500), (20, 30), (384, 384), (700, 250)]):
        path = tmp_path / "owl" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noise(*shape, 3)).save(path)
    images = cache.load(
        cache.Part("any", "art", "train", size, Form("crop")), trees.list_folders(tmp_path, ("owl",), others=("cache",))
    )
    assert images.x.shape == (4, size, size, 3) and isinstance(images.x, np.memmap)
    config = ImageConfig(crop_padding=16, flip=True)
    x = Pipeline(config, torch.device("cpu")).train(torch.from_numpy(images.x), torch.Generator().manual_seed(1))
    moves = draw_moves(4, config, torch.Generator().manual_seed(1))
    assert moves.flip.any() and not moves.flip.all()
    for number, image in enumerate(images.x):
        top, left = moves.corner[:, number].tolist()
        cut = np.pad(image, ((16, 16), (16, 16), (0, 0)))[top : top + size, left : left + size]
        cut = cut[:, ::-1] if moves.flip[number] else cut
        wanted = (cut / 255 - np.array(config.mean)) / np.array(config.std)
        assert np.allclose(x[number].numpy(), wanted.transpose(2, 0, 1), atol=1e-5)
