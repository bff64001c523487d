"""Images that are converted once, and large images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from digit_files import noise
from PIL import Image
from support import IMAGES, fedavg, fit, image_set, same

from fedshift_clients.images.augment import Pipeline, draw_moves
from fedshift_clients.images.preprocessed import Ready, num_bytes
from fedshift_clients.training import image_batches
from fedshift_clients.training.settings import ImageConfig
from fedshift_datasets.base import Form
from fedshift_datasets.io import cache, trees

# --- Images converted once for all epochs: the same bits as converting each batch, and the same draws ---

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


@pytest.mark.parametrize("size", [17, 32])
@pytest.mark.parametrize(("padding", "flip"), [(0, False), (2, False), (4, True), (0, True)])
def test_a_view_has_the_bits_of_an_augmented_batch(size: int, padding: int, flip: bool) -> None:
    config = ImageConfig(crop_padding=padding, flip=flip, mean=MEAN, std=STD)
    pipeline = Pipeline(config, torch.device("cpu"))
    images = torch.from_numpy(image_set(37, size).x)
    converted = Ready(images, pipeline.normalised, padding, flip=flip)
    assert converted._frames.nbytes == num_bytes(images, padding, flip)
    index = torch.randperm(37, generator=torch.Generator().manual_seed(1))[:29]
    one, other = (torch.Generator().manual_seed(3) for _ in range(2))
    buffer = torch.full((40, size, size, 3), torch.nan)
    for _ in range(2):  # the second time what was drawn tells that as much was drawn before
        wanted = pipeline.train(images[index], one)
        result = converted.view(index, pipeline.moves(29, other), buffer)
        assert torch.equal(result, wanted)
        assert result.stride() == wanted.stride()


@pytest.mark.parametrize("views", [1, 2])
def test_training_has_the_same_bits_with_and_without_room_for_them(views: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = IMAGES.model_copy(update={"views": views})
    mine = fedavg(images=config, epochs=2)
    arrays, metrics = fit(mine)
    assert mine._ready is not None
    monkeypatch.setattr(image_batches, "MOST_BYTES", 0)
    plain = fedavg(images=config, epochs=2)
    wanted, expected = fit(plain)
    assert plain._ready is None
    assert same(arrays, wanted)
    assert metrics == expected


def test_where_it_does_not_pay_nothing_is_converted() -> None:
    one_epoch = fedavg(epochs=1)
    fit(one_epoch)
    colours = fedavg(images=IMAGES.model_copy(update={"grayscale": 0.5}), epochs=2)
    fit(colours)
    assert one_epoch._ready is colours._ready is None


# --- Images of 224 pixels and more go the way of small ones: decoded, kept, mapped, augmented, normalised ---


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
