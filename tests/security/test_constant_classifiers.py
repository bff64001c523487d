"""A server scores networks that say one class of every image, each of which would count that class."""

from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType
from guarded_node import answered, constant, run, scored

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_clients.training.eval_slices import most_loss
from fedshift_core.wire.records import decode
from fedshift_core.wire.site_figures import BY_CLASS, KNOWN, OVERALL, from_arrays

LEAST, CLASSES = 5, 10
#: One bias of 10^4 would be found in a sum of losses as often as there are images of its class.
LOUD = -1e4


def is_step(number: float, images: int) -> bool:
    return number == images or (number % LEAST == 0 and 0 <= number <= images - LEAST)


def is_loss(loss: float, images: int) -> bool:
    """Tell whether a sum of losses is of steps in which no image is more than others."""
    steps = loss / (LEAST * most_loss(CLASSES))
    return loss == pytest.approx(images * most_loss(CLASSES)) or steps == pytest.approx(round(steps))


def test_counts_and_losses_of_test_and_validation_images_leave_in_steps(folder: NodeFolder) -> None:
    node = run(folder, "allocation.validation_fraction=0.3")
    with np.load(folder.path / "scan_test.npz") as archive:
        true = np.bincount(archive["y"], minlength=CLASSES).tolist()
    told = []
    for label in range(CLASSES):
        numbers = scored(node, constant(node.weights, label), validation=True)
        assert is_step(numbers["correct/scan"], numbers["count/scan"])
        assert is_step(numbers["validation-correct"], numbers["validation-count"])
        told.append(numbers["correct/scan"])
        numbers = scored(node, constant(node.weights, label, LOUD))
        assert is_loss(numbers["loss-sum/scan"], numbers["count/scan"])
    assert told != true and any(number % LEAST for number in true)
    # Draws that follow from the weights would give, of many that hardly differ, the count itself.
    label = next(k for k, number in enumerate(true) if number % LEAST)
    again = [scored(node, constant(node.weights, label, 9 + step / 8))["correct/scan"] for step in range(12)]
    assert len({*again}) == 1


def test_figures_with_intervals_leave_in_steps(folder: NodeFolder) -> None:
    node = run(folder, "evaluate.site_figures=true")
    asked = {"domains": ["scan"], "site-figures": True}
    for label in range(3):
        reply = answered(node, MessageType.EVALUATE, constant(node.weights, label), server_round=10, **asked)
        figures = from_arrays(decode(reply["site-figures"]), "scan")
        overall = {name: figures.overall[row, 0] * figures.images for row, name in enumerate(OVERALL)}
        assert overall["accuracy"] == pytest.approx(reply["metrics"]["correct/scan"])
        assert all(is_step(round(overall[name], 6), figures.images) for name in ("brier", "ece"))
        place = BY_CLASS.index("sensitivity")
        for k in np.flatnonzero(figures.by_class_marks[place] == KNOWN):
            right = figures.by_class[place, k, 0] * figures.of_class[k]
            assert is_step(round(right, 6), int(figures.of_class[k]))


def test_losses_of_training_images_that_weigh_domains_leave_in_steps(folder: NodeFolder) -> None:
    node = run(folder, "aggregation.weights=afl")
    asked = {"ask-loss": True}
    numbers: Any = answered(node, MessageType.TRAIN, constant(node.weights, 1, LOUD), **asked)["metrics"]
    images = numbers["num-examples"]
    assert is_loss(numbers["received-loss"] * images, images)
