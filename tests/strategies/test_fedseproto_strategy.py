"""FedSeProto on the server: weights are averaged by number of images."""

from support import new_strategy, update

from fedshift_strategies.methods.fedseproto import FedSeProtoStrategy


def test_weights_are_averaged_by_number_of_images() -> None:
    """Eq. 16: 3 and 9 images give 1/4 and 3/4."""
    updates = [update([[1.0, 1.0]] * 3, [n] * 3, i) for i, n in enumerate((1, 3))]
    assert new_strategy(FedSeProtoStrategy).weights(updates) == [0.25, 0.75]
