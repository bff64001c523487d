"""Random numbers by name: the same name gives the same stream, another name another one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift_core.seeding import generator, torch_seed

NAMES = st.tuples(st.integers(0, 2**31), st.text(max_size=12), st.integers(0, 1000), st.integers(0, 1000))


@given(st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_same_name_same_stream_and_another_name_another_one(pair: list[tuple[int, str, int, int]]) -> None:
    (first, again), (other, _) = ([generator(*name).random(8) for _ in range(2)] for name in pair)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    seed = torch_seed(*pair[0])
    assert torch.Generator().manual_seed(seed).initial_seed() == seed != torch_seed(*pair[1])


def test_each_part_of_the_name_counts_and_no_two_of_many_share_a_seed() -> None:
    parts = [(1, "order", 3, 5), (0, "augment", 3, 5), (0, "order", 5, 3), (0, "order"), (0, "order", 0, 1)]
    names = [(0, purpose, node, turn) for purpose in ("a", "order") for node in range(40) for turn in range(2, 40)]
    assert len({torch_seed(*name) for name in names + parts}) == len({*names, *parts})


def test_global_state_is_left_alone_and_negative_numbers_are_refused() -> None:
    before = np.random.get_state()
    generator(0, "order").random()
    assert all(np.array_equal(now, then) for now, then in zip(np.random.get_state(), before, strict=True))
    for name in ((-1, "order"), (0, "order", -1)):
        with pytest.raises(ValueError, match="negative"):
            generator(*name)
