"""Counts behind scores in steps: on a grid, within range, with the right mean, the same for the same number."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedshift_app.config.resolving import resolve
from fedshift_app.node import rounding
from fedshift_app.node.place import Guard, Place
from fedshift_app.node.rounding import Rounding
from fedshift_clients.training.eval_slices import most_loss
from fedshift_core.wire.records import encode
from fedshift_datasets.base import Source

SECRET = 2**200 + 5


@given(st.integers(1, 300), st.integers(1, 12), st.integers(0, 300), st.floats(0.1, 20), st.integers(0, 2**64))
def test_a_rounded_sum_is_a_neighbour_on_the_grid(
    images: int, least: int, value: int, each: float, secret: int
) -> None:
    """Of which none is nearer to another one than the least number of images."""
    exact = min(value, images) * each
    made = Rounding(secret, least, 10).of_images(exact, images, "correct/a", each)
    assert made == Rounding(secret, least, 10).of_images(exact, images, "correct/a", each)
    grid = [step * least * each for step in range(max(images // least, 1))] + [images * each]
    assert min(abs(made - point) for point in grid) < 1e-9 * images * each
    assert 0 <= made <= images * each and abs(made - exact) < 2 * max(least, 1) * each
    assert images < 2 * least or np.diff(grid).min() >= least * each * (1 - 1e-9)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 12, 39, 41, 43])
def test_the_mean_over_secrets_is_the_number(count: int) -> None:
    """Also in the last and longest step."""
    asked = (Rounding(SECRET + number, 5, 10) for number in range(4000))
    drawn = [each.of_images(count, 43, "correct/a") for each in asked]
    assert np.mean(drawn) == pytest.approx(count, abs=5 * 8 / 2 / np.sqrt(4000))
    assert (len(set(drawn)) == 1) is (count in (0, 5, 43))


def test_each_number_and_secret_has_a_draw_of_its_own() -> None:
    first = [Rounding(SECRET, 5, 10).draw(f"correct/a {n}") for n in range(200)]
    other = [Rounding(SECRET + 1, 5, 10).draw(f"correct/a {n}") for n in range(200)]
    name = [Rounding(SECRET, 5, 10).draw(f"correct/b {n}") for n in range(200)]
    assert abs(np.corrcoef([first, other, name])[np.triu_indices(3, 1)]).max() < 0.25
    assert len({*first, *other, *name}) == 600 and min(first) >= 0 and max(first) < 1


def test_every_score_of_a_reply_is_rounded_and_nothing_else() -> None:
    numbers = {
        "correct/a/b": 13, "count/a/b": 43, "loss-sum/a/b": 31.5, "other-correct/bn=own/a/b": 17,
        "validation-correct": 7, "validation-count": 21, "validation-loss-sum": 3.25, "local-correct/a": 3,
        "local-count/a": 12, "num-examples": 43, "received-loss": 0.37,
    }  # fmt: skip
    made = Rounding(SECRET, 5, 10, {"received-loss": (100, most_loss(10))})
    rounded = dict(made.scores(numbers))
    counted = {"count/a/b", "validation-count", "local-count/a", "num-examples"}
    assert rounded.keys() == numbers.keys() - counted
    assert all(rounded[name] % 5 == 0 for name in ("correct/a/b", "other-correct/bn=own/a/b", "validation-correct"))
    assert rounded["loss-sum/a/b"] % (5 * most_loss(10)) == pytest.approx(0)
    assert isinstance(rounded["correct/a/b"], int)


def test_a_question_is_what_decides_its_answer() -> None:
    where = Place("scan", -1, -1, Source(None), False, 1, guard=Guard(5, SECRET))

    def asked(value: float = 0.0, given: str = "", **more: Any) -> str | None:
        record = ConfigRecord({"server-round": 1, "domains": ["scan"], **more})
        weights = {"w": np.full(3, value, np.float32)}
        content = RecordDict({"arrays": encode(weights), "knowledge": ArrayRecord(), "config": record})
        return rounding.question("evaluate", content, resolve({"set": given}), where)

    first = asked()
    assert asked(**{"server-round": 7, "run-id": "b"}) == first == asked(given="seed=3")
    assert asked(1e-6) != first != asked(domains=["sketch"])
    assert asked(given="shift.name=corruption shift.corruption=fog shift.severity=2") != first
