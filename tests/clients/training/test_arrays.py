"""Arrays that a tensor's later values do not reach."""

import numpy as np
import torch

from fedshift_clients.training.arrays import own_array


def test_an_own_array_is_in_c_order_and_stays() -> None:
    tensor = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last).requires_grad_(True)
    array = own_array(tensor)
    with torch.no_grad():
        tensor.zero_()
    assert array.flags.c_contiguous and array.flags.writeable
    np.testing.assert_array_equal(array, np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4))
