"""Images that are converted once."""

import pytest
import torch
from support import IMAGES, fedavg, fit, image_set, same

from fedshift_clients.images.augment import Pipeline
from fedshift_clients.images.preprocessed import Ready, num_bytes
from fedshift_clients.training import image_batches
from fedshift_clients.training.settings import ImageConfig

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
