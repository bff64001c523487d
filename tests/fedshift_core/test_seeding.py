"""Random numbers by name: the same name gives the same stream, another name another one."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedshift_core.seeding import generator, seed_sequence, torch_seed

Name = tuple[int, str, tuple[int, int]]

seeds = st.integers(0, 2**31)
names = st.tuples(seeds, st.text(max_size=12), st.tuples(st.integers(0, 1000), st.integers(0, 1000)))


def first_words(name: Name) -> list[int]:
    seed, purpose, numbers = name
    return [int(word) for word in seed_sequence(seed, purpose, *numbers).generate_state(4, np.uint64)]


@given(name=names)
def test_same_name_same_stream(name: Name) -> None:
    seed, purpose, numbers = name
    first, second = (generator(seed, purpose, *numbers).random(8) for _ in range(2))
    assert np.array_equal(first, second)
    assert torch_seed(seed, purpose, *numbers) == torch_seed(seed, purpose, *numbers)


@given(pair=st.lists(names, min_size=2, max_size=2, unique=True))
def test_another_name_another_stream(pair: list[Name]) -> None:
    assert first_words(pair[0]) != first_words(pair[1])


@pytest.mark.parametrize(
    "other",
    [(1, "order", (3, 5)), (0, "augment", (3, 5)), (0, "order", (4, 5)), (0, "order", (3, 6)), (0, "order", (5, 3))],
    ids=["seed", "purpose", "node", "round", "order of numbers"],
)
def test_each_part_of_the_name_counts(other: Name) -> None:
    assert first_words(other) != first_words((0, "order", (3, 5)))
    seed, purpose, numbers = other
    assert torch_seed(seed, purpose, *numbers) != torch_seed(0, "order", 3, 5)


@pytest.mark.parametrize("numbers", [(1,), (0, 1)])
def test_a_number_sets_a_stream_apart_from_none(numbers: tuple[int, ...]) -> None:
    assert generator(0, "order").random() != generator(0, "order", *numbers).random()


def test_no_two_of_many_nodes_and_rounds_share_a_seed() -> None:
    drawn = {torch_seed(0, purpose, node, turn) for purpose in ("a", "b") for node in range(40) for turn in range(40)}
    assert len(drawn) == 2 * 40 * 40


@given(name=names)
def test_torch_takes_the_seed(name: Name) -> None:
    seed = torch_seed(name[0], name[1], *name[2])
    assert 0 <= seed < 2**63
    assert torch.Generator().manual_seed(seed).initial_seed() == seed


def test_global_state_is_left_alone() -> None:
    before: Any = np.random.get_state()
    generator(0, "order").random()
    after: Any = np.random.get_state()
    assert np.array_equal(before[1], after[1])
    assert before[2:] == after[2:]


@pytest.mark.parametrize("name", [(-1, "order", ()), (0, "order", (-1,))])
def test_negative_numbers_are_refused(name: tuple[int, str, tuple[int, ...]]) -> None:
    seed, purpose, numbers = name
    with pytest.raises(ValueError, match="negative"):
        generator(seed, purpose, *numbers)
