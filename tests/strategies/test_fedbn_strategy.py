"""FedBN on the server: equal weights, or by images."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from pydantic import ValidationError

from strategies.fedbn import FedBNServerParams, FedBNStrategy
from strategies.federation.roster import Node
from strategies.federation.rounds import Federation
from strategies.federation.updates import Update

FEDERATION = Federation(
    domains=("a", "b"), num_classes=2, feature_dim=2, seed=0, participation=1.0, personal=True, min_nodes=1,
    node_timeout=1.0, engine="simulation", run_json="",
)  # fmt: skip


def update(index: int, num_examples: int) -> Update:
    node = Node(100 + index, index, "ab"[index % 2], (num_examples, 0), 1, True, index)
    return Update(node, ArrayRecord({"w": Array(np.ones(1, np.float32))}), {}, num_examples, {})


def weights(params: FedBNServerParams, *sizes: int) -> list[float]:
    strategy = FedBNStrategy(FEDERATION, params, lambda *told: None)
    return strategy.weights([update(i, size) for i, size in enumerate(sizes)])


@pytest.mark.parametrize("sizes", [(10, 30, 60), (5,), (1, 1)])
def test_nodes_weigh_the_same_by_default(sizes: tuple[int, ...]) -> None:
    assert weights(FedBNServerParams(), *sizes) == [1 / len(sizes)] * len(sizes)


def test_weights_by_images_are_fedavgs() -> None:
    assert weights(FedBNServerParams(weighting="samples"), 10, 30, 60) == [0.1, 0.3, 0.6]


def test_another_weighting_is_refused() -> None:
    with pytest.raises(ValidationError):
        FedBNServerParams.model_validate({"weighting": "domains"})
