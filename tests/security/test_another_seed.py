"""A server sends another seed, round or place of the node, so that other images would be in its parts."""

from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import MessageType
from guarded_node import answered, run, scored
from real_node import AppOfNode

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.node import ledger, partition, setup
from fedshift_app.node.data import own_images
from fedshift_app.node.policy import Policy
from fedshift_core.wire import names
from fedshift_core.wire.records import decode

SUMS = {"take-statistics": True, "bn-images": 8}


def parts_of(node: AppOfNode, folder: NodeFolder) -> list[list[bytes]]:
    where = setup.place(node.config, node.context, "deployment")
    own: Any = own_images(node.config, replace(where, guard=partition.guard(Policy(), ledger.of_images(folder.path))))
    return [sorted(mark.tobytes() for mark in part.marks) for part in (own.train, own.validation)]


def test_the_validation_part_is_the_same_under_each_seed(folder: NodeFolder) -> None:
    first, second = (run(folder, f"allocation.validation_fraction=0.2 seed={seed}") for seed in (0, 1))
    assert parts_of(first, folder) == parts_of(second, folder)


def test_sums_are_over_the_same_images_under_each_seed_and_place(folder: NodeFolder) -> None:
    asked = "model.name=cnn_bn evaluate.bn=[averaged,retaken] evaluate.bn_images=8 seed={}"
    weights = run(folder, asked.format(0)).weights
    first, *others = (
        decode(answered(run(folder, asked.format(seed)), MessageType.EVALUATE, weights, **SUMS | more)["knowledge"])
        for seed, more in ((0, {}), (1, {}), (0, {names.NODE_INDEX: 3}), (0, {names.SERVER_ROUND: 2}))
    )
    assert all(np.array_equal(array, other[name]) for name, array in first.items() for other in others)


def test_the_test_sample_is_the_same_under_each_seed(folder: NodeFolder) -> None:
    number = scored(run(folder))["count/scan"]
    first, second = (run(folder, f"images.eval_batch=20 evaluate.fraction={20 / number} seed={s}") for s in (0, 1))
    numbers = scored(first, drawn=[20])
    assert numbers == scored(second, first.weights, drawn=[20]) and numbers["count/scan"] == 20
