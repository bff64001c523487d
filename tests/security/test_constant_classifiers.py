"""A server scores networks that say one class of every image, each of which would count that class."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import MessageType
from guarded_node import answered, constant, images, run, scored

from fedshift_clients.training.eval_slices import most_loss
from fedshift_core.wire.records import decode
from fedshift_core.wire.site_figures import BY_CLASS, KNOWN, OVERALL, from_arrays

LEAST, CLASSES = 5, 10


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))


def is_step(number: float, images: int) -> bool:
    return number == images or (number % LEAST == 0 and 0 <= number <= images - LEAST)


def true_counts(folder: Path, part: str) -> list[int]:
    with np.load(folder / f"scan_{part}.npz") as archive:
        return np.bincount(archive["y"], minlength=CLASSES).tolist()


def test_counts_of_test_and_validation_images_leave_in_steps(tmp_path: Path) -> None:
    folder = images(tmp_path)
    node = run(folder, "allocation.validation_fraction=0.3")
    true = true_counts(folder.path, "test")
    told, validation = [], []
    for label in range(CLASSES):
        numbers = scored(node, constant(node.weights, label), validation=True)
        assert is_step(numbers["correct/scan"], numbers["count/scan"])
        assert is_step(numbers["validation-correct"], numbers["validation-count"])
        told.append(numbers["correct/scan"])
        validation.append(numbers["validation-correct"])
    assert told != true and sum(map(abs, np.subtract(told, true))) > 0
    assert any(number % LEAST for number in true)


def test_asking_with_weights_that_hardly_differ_gives_no_mean(tmp_path: Path) -> None:
    """Draws that follow from the weights would give, of many, the count itself."""
    folder = images(tmp_path)
    node = run(folder)
    label = next(k for k, number in enumerate(true_counts(folder.path, "test")) if number % LEAST)
    asked = [scored(node, constant(node.weights, label, 9 + step / 8)) for step in range(12)]
    assert len({numbers["correct/scan"] for numbers in asked}) == 1


def test_summed_losses_leave_in_steps_and_no_image_is_more_than_others(tmp_path: Path) -> None:
    """One bias of 10^4 would be found in the sum as often as there are images of its class."""
    folder = images(tmp_path)
    node = run(folder)
    step = LEAST * most_loss(CLASSES)
    for label in range(CLASSES):
        numbers = scored(node, constant(node.weights, label, -1e4))
        most = numbers["count/scan"] * most_loss(CLASSES)
        loss = numbers["loss-sum/scan"]
        assert loss == pytest.approx(most) or loss / step == pytest.approx(round(loss / step))


def test_figures_with_intervals_leave_in_steps(tmp_path: Path) -> None:
    folder = images(tmp_path)
    node = run(folder, "evaluate.site_figures=true")
    for label in range(3):
        weights = constant(node.weights, label)
        reply = answered(
            node, MessageType.EVALUATE, weights, server_round=10, **{"domains": ["scan"], "site-figures": True}
        )
        figures = from_arrays(decode(reply["site-figures"]), "scan")
        accuracy = figures.overall[OVERALL.index("accuracy"), 0] * figures.images
        assert accuracy == pytest.approx(reply["metrics"]["correct/scan"])
        known = figures.by_class_marks[BY_CLASS.index("sensitivity")] == KNOWN
        for k in np.flatnonzero(known):
            right = figures.by_class[BY_CLASS.index("sensitivity"), k, 0] * figures.of_class[k]
            assert is_step(round(right, 6), int(figures.of_class[k]))
        for row, name in enumerate(OVERALL):
            if name in ("brier", "ece"):
                number = round(figures.overall[row, 0] * figures.images, 6)
                assert is_step(number, figures.images), (name, number)


def test_losses_of_training_images_that_weigh_domains_leave_in_steps(tmp_path: Path) -> None:
    folder = images(tmp_path)
    node = run(folder, "aggregation.weights=afl")
    numbers = answered(node, MessageType.TRAIN, constant(node.weights, 1, -1e4), **{"ask-loss": True})["metrics"]
    total = float(numbers["received-loss"]) * int(numbers["num-examples"])
    step = LEAST * most_loss(CLASSES)
    most = int(numbers["num-examples"]) * most_loss(CLASSES)
    assert total == pytest.approx(most) or total / step == pytest.approx(round(total / step))
