"""A server asks for parts of a node's training images that differ by one: validation parts, samples for BatchNorm."""

import numpy as np
from flwr.app import MessageType
from guarded_node import answered, refused, run

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_core.wire.records import decode


def test_two_validation_fractions(folder: NodeFolder) -> None:
    first, second = (run(folder, f"allocation.validation_fraction={part}", "fedproc") for part in (0.1, 0.107))
    answered(first, MessageType.TRAIN)
    for kind in (MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE):  # counts by class would tell as well
        more = {"domains": ["scan"]} if kind == MessageType.EVALUATE else {}
        assert "allocation.validation_fraction=0.107, allowed is 0.1: " in refused(second, kind, **more)


def test_two_samples_for_batchnorm(folder: NodeFolder) -> None:
    given = "model.name=cnn_bn evaluate.bn=[averaged,retaken] evaluate.bn_images={}"
    sums = {"take-statistics": True, "bn-images": 8}
    first, again = (answered(run(folder, given.format(8)), MessageType.EVALUATE, **sums) for _ in range(2))
    reason = refused(run(folder, given.format(9)), MessageType.EVALUATE, **sums | {"bn-images": 9})
    assert "evaluate.bn_images=9, allowed is 8: " in reason
    kept = decode(again["knowledge"])
    assert all(np.array_equal(array, kept[name]) for name, array in decode(first["knowledge"]).items())
