"""Which test images a node scores: all, a part, or a sample that is the same in all rounds and on all nodes."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clients.training.eval_slices import asked_images
from datasets.base import ImageSet

SEED = 3


def images(number: int) -> ImageSet:
    """Images whose label is their place."""
    return ImageSet(np.zeros((number, 2, 2, 3), np.uint8), np.arange(number, dtype=np.int64))


def places(number: int, seed: int = SEED, **config: Any) -> list[list[int]]:
    requested = asked_images(lambda domain: images(number), config, seed)
    return [test.y.tolist() for _, test in requested]


def test_all_images_unless_something_else_is_asked() -> None:
    assert places(5, domains=["a", "b"]) == [list(range(5))] * 2


def test_a_part_is_a_run_of_images() -> None:
    assert places(9, domains=["a", "b"], drawn=[9, 9], starts=[0, 4], stops=[4, 9]) == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]


@given(number=st.integers(2, 60), data=st.data())
def test_parts_of_a_sample_are_the_sample(number: int, data: st.DataObject) -> None:
    drawn = data.draw(st.integers(1, number))
    cut = data.draw(st.integers(0, drawn))
    (whole,) = places(number, domains=["a"], drawn=[drawn], starts=[0], stops=[drawn])
    parts = [
        places(number, domains=["a"], drawn=[drawn], starts=[start], stops=[stop])[0]
        for start, stop in ((0, cut), (cut, drawn))
    ]
    assert parts[0] + parts[1] == whole == sorted(set(whole))
    assert len(whole) == drawn


def test_a_sample_depends_on_seed_and_domain() -> None:
    config = {"domains": ["a", "b", "a"], "drawn": [8] * 3, "starts": [0] * 3, "stops": [8] * 3}
    first, second, again = places(50, **config)
    assert first == again != second
    assert places(50, seed=SEED + 1, **config)[0] != first
