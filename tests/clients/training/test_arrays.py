"""Read-only arrays as tensors."""

import warnings

import numpy as np
import pytest
import torch

from clients.training.arrays import view


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_a_read_only_array_is_viewed_without_a_word(shape: tuple[int, ...]) -> None:
    array = np.frombuffer(np.arange(np.prod(shape), dtype=np.float32).tobytes(), np.float32).reshape(shape)
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else Torch tells it once in the life of a process
    try:
        with warnings.catch_warnings(record=True) as result:
            warnings.simplefilter("always")
            torch.from_numpy(array)
            assert len(result) == 1
            tensor = view(array)
            assert len(result) == 1
    finally:
        torch.set_warn_always(always)
    assert not array.flags.writeable
    assert np.array_equal(tensor.numpy(), array)
    assert not array.size or tensor.data_ptr() == array.__array_interface__["data"][0]
